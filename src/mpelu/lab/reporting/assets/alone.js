// The explorer as a page of its own.

fillHeader(
  "MPELU",
  [],
  "Multiple Parametric Exponential Linear Units: one activation that contains ReLU, PReLU and ELU.",
);
document.getElementById("main").replaceChildren(explorer());
