// Light or dark as chosen here before. No module: it runs before the first paint, so that nothing flashes.

try {
  const theme = localStorage.getItem('mambad.theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: follow the system */ }
