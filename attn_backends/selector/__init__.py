"""How one backend is chosen for a request, logged and explained. Imports the light core and the registry; no torch."""
