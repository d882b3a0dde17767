//! Charts as SVG and the page around them, for a person who looks at a report. Knows nothing of what it draws.
