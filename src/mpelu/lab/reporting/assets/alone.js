// The explorer as a page of its own.

fillHeader(
  "MPELU",
  [],
  "Multiple Parametric Exponential Linear Units include ReLU, PReLU and ELU as special cases.",
);
document.getElementById("main").replaceChildren(explorer());
