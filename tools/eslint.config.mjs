// Rules for the scripts of the report. tools/lint_js.py runs them.

// Everything of the browser that the scripts may use.
const BROWSER = [
  "Blob",
  "Image",
  "ResizeObserver",
  "URL",
  "XMLSerializer",
  "clearTimeout",
  "document",
  "fetch",
  "getComputedStyle",
  "localStorage",
  "navigator",
  "performance",
  "requestAnimationFrame",
  "setTimeout",
  "window",
];

// Data from run folders must reach the page as text, never as markup.
const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "write", "srcdoc"].map(
  (property) => ({ property, message: "Use el() and text nodes." }),
);

export default [
  {
    languageOptions: {
      ecmaVersion: 2022,
      sourceType: "script",
      globals: Object.fromEntries(BROWSER.map((name) => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "array-callback-return": "error",
      eqeqeq: "error",
      "no-cond-assign": "error",
      "no-const-assign": "error",
      "no-constant-condition": ["error", { checkLoops: false }],
      "no-dupe-args": "error",
      "no-dupe-class-members": "error",
      "no-dupe-else-if": "error",
      "no-dupe-keys": "error",
      "no-duplicate-case": "error",
      "no-empty": "error",
      "no-eval": "error",
      "no-fallthrough": "error",
      "no-func-assign": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-redeclare": "error",
      "no-restricted-properties": ["error", ...MARKUP],
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-shadow-restricted-names": "error",
      "no-undef": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": "error",
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-var": "error",
      "prefer-const": "error",
      "use-isnan": "error",
      "valid-typeof": "error",
    },
  },
  // The explorer alone uses a part of the scripts that it shares with the report.
  { files: ["explorer.js"], rules: { "no-unused-vars": "off" } },
];
