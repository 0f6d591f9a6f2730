"""The Django shop: project and app in one package, with the page that shows the sale."""
