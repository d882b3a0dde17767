//! YAML documents with the line of every key and value. Knows no schema and resolves no includes.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::Value;
use thiserror::Error;

/// Deeper than any manifest; a file that goes on is refused before it costs stack.
const MAX_DEPTH: usize = 64;
/// Values of one file, those that aliases repeat included.
const MAX_VALUES: usize = 100_000;

/// A value and the line where it begins, from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub line: usize,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One member of a map; no key stands twice in one map.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub line: usize,
    pub value: Node,
}

/// Why a text is no YAML that we read, and the line where it shows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}: {what}")]
pub struct YamlError {
    pub line: usize,
    pub what: String,
}

impl Node {
    /// The value of `key`; nothing where this is no map or has no such key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The members of a map, none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Map(entries) => entries,
            Content::Scalar(_) | Content::List(_) => &[],
        }
    }

    /// The items of a list, none of anything else.
    pub fn items(&self) -> &[Node] {
        match &self.content {
            Content::List(items) => items,
            Content::Scalar(_) | Content::Map(_) => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(value) => value.as_str(),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    pub fn is_null(&self) -> bool {
        self.content == Content::Scalar(Value::Null)
    }

    /// The value without its lines.
    pub fn json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Node::json).collect(),
            Content::Map(entries) => {
                Value::Object(entries.iter().map(|entry| (entry.key.clone(), entry.value.json())).collect())
            }
        }
    }

    /// Every value below this one and itself.
    fn count(&self) -> usize {
        let below = match &self.content {
            Content::Scalar(_) => 0,
            Content::List(items) => items.iter().map(Node::count).sum(),
            Content::Map(entries) => entries.iter().map(|entry| entry.value.count()).sum(),
        };
        below + 1
    }
}

/// Reads every document of `text`, those that hold nothing left out.
///
/// # Errors
/// The first thing that is no YAML, or that no manifest needs: a key twice, a tag, endless depth.
pub fn documents(text: &str) -> Result<Vec<Node>, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), values: 0 };
    let mut documents = Vec::new();
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => documents.push(reader.node(event, span, 0)?),
        }
    }
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    values: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, YamlError> {
        self.parser.next_event().transpose().map_err(|error| YamlError {
            line: error.marker().line().max(1),
            what: format!("no YAML: {}", error.info()),
        })
    }

    fn within(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        self.next()?.ok_or_else(|| YamlError { line: 1, what: "no YAML: it ends within a value".to_owned() })
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, YamlError> {
        let line = span.start.line().max(1);
        let refuse = |what: String| Err(YamlError { line, what });
        self.values += 1;
        if depth > MAX_DEPTH {
            return refuse(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => match tag {
                None => (scalar(&text, style), anchor),
                Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => {
                    (scalar(&text, ScalarStyle::DoubleQuoted), anchor)
                }
                Some(tag) => return refuse(format!("the tag {}{} is not understood", tag.handle, tag.suffix)),
            },
            Event::SequenceStart(anchor, _) => (Content::List(self.items(depth)?), anchor),
            Event::MappingStart(anchor, _) => (Content::Map(self.entries(depth)?), anchor),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => {
                    self.values += node.count();
                    (node.content.clone(), 0)
                }
                None => return refuse("an alias stands within what it repeats".to_owned()),
            },
            other => return refuse(format!("no YAML: {other:?} where a value should stand")),
        };
        if self.values > MAX_VALUES {
            return refuse(format!("more than {MAX_VALUES} values in one file"));
        }
        let node = Node { line, content };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Node>, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.within()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, YamlError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = match self.within()? {
                (Event::MappingEnd, _) => return Ok(entries),
                other => other,
            };
            let line = span.start.line().max(1);
            let Event::Scalar(key, ..) = event else {
                return Err(YamlError { line, what: "a key must be a plain word".to_owned() });
            };
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let what = format!("{key} stands twice in one map, first in line {}", first.line);
                return Err(YamlError { line, what });
            }
            let (event, span) = self.within()?;
            entries.push(Entry { key: key.into_owned(), line, value: self.node(event, span, depth + 1)? });
        }
    }
}

/// A plain word is what it looks like, as in YAML 1.2; anything in quotes is a text.
fn scalar(text: &str, style: ScalarStyle) -> Content {
    Content::Scalar(match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => Value::Null,
        (ScalarStyle::Plain, "true" | "True" | "TRUE") => true.into(),
        (ScalarStyle::Plain, "false" | "False" | "FALSE") => false.into(),
        (ScalarStyle::Plain, word) => number(word).unwrap_or_else(|| word.into()),
        (_, text) => text.into(),
    })
}

fn number(word: &str) -> Option<Value> {
    if !word.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return None;
    }
    if let Ok(whole) = word.parse::<i64>() {
        return Some(whole.into());
    }
    let decimal = word.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    // What is no finite number (`.inf`) stays a word, and is refused as one.
    word.parse::<f64>().ok().filter(|_| decimal).and_then(serde_json::Number::from_f64).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_key_and_value_knows_its_line() {
        let read = documents("# a comment\n---\na:\n  b: 1\n  c:\n  - x\n  - 'y'\n---\nd: {e: 2.5s}\n").expect("YAML");
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].json(), json!({"a": {"b": 1, "c": ["x", "y"]}}));
        let a = read[0].entry("a").expect("a");
        assert_eq!((a.line, a.value.entry("b").expect("b").line), (3, 4));
        assert_eq!(a.value.get("c").expect("c").items()[1].line, 7);
        assert_eq!(read[1].get("d").and_then(|d| d.get("e")).and_then(Node::text), Some("2.5s"));
    }

    #[test]
    fn plain_words_are_what_they_look_like_and_quoted_ones_are_texts() {
        let text = "[1, -2, 1.5, 1e3, true, ~, no, 10s, .inf, 0x10, '1', \"true\", !!str 7]";
        let read = documents(text).expect("YAML");
        let expected = json!([1, -2, 1.5, 1000.0, true, null, "no", "10s", ".inf", "0x10", "1", "true", "7"]);
        assert_eq!(read[0].json(), expected);
    }

    #[test]
    fn an_alias_repeats_what_its_anchor_holds() {
        let read = documents("a: &x {b: 1}\nc: *x\n").expect("YAML");
        assert_eq!(read[0].json(), json!({"a": {"b": 1}, "c": {"b": 1}}));
    }

    #[test]
    fn what_is_no_yaml_is_refused_with_its_line() {
        let bomb: String = (1..12).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, level| {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            format!("{text}a{level}: &a{level} [{below}]\n")
        });
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for (text, line, part) in [
            ("a: 1\nb: [1\n", 3, "no YAML"),
            ("a:\n\tb: 1\n", 2, "no YAML"),
            ("a: 1\nb: 2\na: 3\n", 3, "a stands twice in one map, first in line 1"),
            ("? [a]\n: 1\n", 1, "a key must be a plain word"),
            ("a: !ruby/object 1\n", 1, "tag"),
            ("a: *nothing\n", 1, "no YAML"),
            (&deep, 1, "deeper than 64"),
            (&bomb, 5, "more than 100000 values"),
        ] {
            let error = documents(text).expect_err(text);
            assert!(error.what.contains(part), "{text}: {error}");
            assert_eq!(error.line, line, "{text}: {error}");
            assert_eq!(error.what.lines().count(), 1, "{error}");
        }
        assert_eq!(documents("# nothing\n---\n").expect("YAML"), []);
    }
}
