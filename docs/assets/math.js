// Formulas where no mathematical font is installed: subscripts are lowered by the style sheet.
document.addEventListener("DOMContentLoaded", () => {
  const lowered = document.querySelector("math msub");
  if (!lowered) return;
  const [base, below] = [...lowered.children].map((each) => each.getBoundingClientRect());
  document.documentElement.classList.toggle("no-math-font", below.bottom - base.bottom < base.height / 8);
});
