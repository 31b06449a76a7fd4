"""What people and machines read of a run: headline, JSON, Markdown, JUnit, HTML, and what changed since another run.

Everything here is made of a `RunRecord` alone and imports no torch; jinja2 only for the HTML page.
"""
