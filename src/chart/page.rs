//! The page around charts and tables: one file that needs nothing else, also without a network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; white-space: pre-line }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto; display: block }
.warning { background: #fff3d6; padding: .4rem .8rem; border-left: 4px solid #e69f00 }
.scroll { overflow-x: auto }
";

/// A whole page with this title and content.
pub fn page(title: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { h1 { (title) } (content) }
        }
    };
    page.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_nothing_else_and_takes_no_markup_from_its_title() {
        let page = page("<script>", &html! { p { "content" } });
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<p>content</p>"), "{page}");
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"), "{page}");
        for from_elsewhere in ["http:", "https:", "src=", "href=", "@import"] {
            assert!(!page.contains(from_elsewhere), "{from_elsewhere} in {page}");
        }
    }
}
