//! The arrows between the rooms of `src/`: who may use whom, who may speak HTTP, and that nothing goes in a circle.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Every room and what it may use, from the top down: an arrow to a room further up would be a cycle.
const ARROWS: [(&str, &[&str]); 26] = [
    ("main", &["cli", "settings", "serve", "up", "stub", "lab", "load", "doctor", "health"]),
    ("cli", &["settings", "up", "stub", "lab", "load", "doctor", "downstream", "health", "secret", "units"]),
    (
        "serve",
        &[
            "settings",
            "server",
            "web",
            "downstream",
            "fault",
            "health",
            "secret",
            "telemetry",
            "wire",
            "signals",
            "units",
        ],
    ),
    ("settings", &["server", "web", "downstream", "fault", "health", "secret", "telemetry", "units"]),
    (
        "lab",
        &["ui", "stub", "kubelet", "cluster", "load", "chart", "manifest", "telemetry", "wire", "signals", "units"],
    ),
    ("up", &["ui", "cluster", "telemetry", "wire", "signals", "units"]),
    ("ui", &[]),
    ("stub", &["server", "fault", "telemetry", "wire", "signals", "units"]),
    ("kubelet", &["cluster", "manifest", "telemetry", "wire", "units"]),
    ("doctor", &["manifest", "telemetry", "units"]),
    ("cluster", &["telemetry", "wire", "units", "tls"]),
    ("load", &["chart", "wire", "signals", "secret", "units", "tls"]),
    ("server", &["fault", "telemetry", "wire", "units"]),
    ("web", &["ui", "downstream", "manifest", "fault", "health", "telemetry", "wire", "units"]),
    ("downstream", &["manifest", "telemetry", "wire", "secret", "units", "tls"]),
    ("health", &["telemetry", "wire", "secret", "units", "tls"]),
    ("fault", &["telemetry", "wire", "units"]),
    ("telemetry", &["wire", "units"]),
    ("manifest", &["wire", "units"]),
    ("wire", &["units"]),
    ("secret", &[]),
    ("chart", &[]),
    ("signals", &[]),
    ("tls", &[]),
    ("units", &[]),
    // The map; it uses nothing.
    ("lib", &[]),
];

/// What only some rooms may name in their code, as it is written in a path.
const FENCED: [(&str, &[&str]); 4] = [
    ("axum", &["web", "server", "stub", "up"]),
    ("reqwest", CLIENTS),
    ("hyper::client", CLIENTS),
    ("hyper_util::client", CLIENTS),
];
const CLIENTS: &[&str] = &["downstream", "load", "health", "cluster"];

#[test]
fn imports_point_down() {
    let offences: String = sources().iter().map(|(path, text)| offences(path, text)).collect();
    assert!(offences.is_empty(), "imports that no arrow allows (see ARROWS):\n{offences}");
}

#[test]
fn the_arrows_have_no_cycle() {
    for (place, (room, uses)) in ARROWS.iter().enumerate() {
        for used in *uses {
            // `ui` is data that several show, so it stands where the first of them needs it.
            let below = ARROWS[place + 1..].iter().any(|(room, _)| room == used);
            let leaf = ARROWS.iter().any(|(room, uses)| room == used && uses.is_empty());
            assert!(below || leaf, "{room} -> {used} points up");
        }
    }
}

#[test]
fn every_room_is_on_the_map_above_what_it_uses() {
    let map = fs::read_to_string(src().join("lib.rs")).expect("src/lib.rs");
    let rooms: Vec<&str> = map.lines().filter_map(|line| line.strip_prefix("//! | [`")?.split('`').next()).collect();
    for (path, _) in sources() {
        let room = room(&path);
        assert!(ARROWS.iter().any(|(known, _)| *known == room), "{}: {room} is not in ARROWS", path.display());
        let listed = rooms.contains(&room.as_str()) || room == "main" || room == "lib";
        assert!(listed, "the table in src/lib.rs lacks {room}");
    }
    for (place, room) in rooms.iter().enumerate() {
        let uses = ARROWS.iter().find(|(known, _)| known == room).map_or(&[][..], |(_, uses)| uses);
        for used in uses {
            assert!(!rooms[..place].contains(used), "the table in src/lib.rs has {used} above {room}, which uses it");
        }
    }
}

#[test]
fn an_import_that_points_up_is_found_and_its_line_shown() {
    let found = |path: &str, text: &str| offences(Path::new(path), text);
    for (path, text, shown) in [
        ("wire.rs", "use crate::web::Node;", "src/wire.rs:1: wire -> web"),
        (
            "downstream/pool.rs",
            "//! crate::web is fine here\n\nuse crate::{\n    units::Span,\n    server::bind,\n};",
            "src/downstream/pool.rs:3: downstream -> server",
        ),
        ("health/mod.rs", "fn f() { crate::web::router(); }", "src/health/mod.rs:1: health -> web"),
        ("health/mod.rs", "use super::server;", "src/health/mod.rs:1: health -> server"),
        ("web/probes.rs", "use super::super::{cli, health};", "src/web/probes.rs:1: web -> cli"),
        ("main.rs", "use rest_cascade::{cli, wire};", "src/main.rs:1: main -> wire"),
        ("up.rs", "use crate::serve;", "src/up.rs:1: up -> serve"),
        ("health/mod.rs", "use axum::Json;", "src/health/mod.rs:1: health names axum"),
        ("web/x.rs", "    reqwest::get(\"x\").await;", "src/web/x.rs:1: web names reqwest"),
        ("server/x.rs", "use hyper::client::conn;", "src/server/x.rs:1: server names hyper::client"),
        ("server/x.rs", "use hyper::{body::Incoming, client::conn};", "src/server/x.rs:1: server names hyper::client"),
    ] {
        assert!(found(path, text).contains(shown), "{text:?} in {path}: {:?}", found(path, text));
    }
    for (path, text) in [
        ("web/mod.rs", "use crate::health::Health;\nuse axum::Router;\nuse super::wire;"),
        ("web/probes.rs", "use super::Node;\nuse crate::health::{self, Report};"),
        ("wire.rs", "#[cfg(test)]\nmod tests {\n    use super::*;\n}"),
        ("health/ask.rs", "let client = reqwest::Client::new(); // not axum::anything"),
        ("units.rs", "/// As `crate::web` has it.\nlet text = \"use crate::web;\";"),
    ] {
        assert_eq!(found(path, text), "", "{text:?} in {path}");
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file: its path below `src/`, and its text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![src()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of src/") {
            let path = entry.expect("an entry of src/").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source text");
                found.push((path.strip_prefix(src()).expect("below src/").to_owned(), text));
            }
        }
    }
    assert!(found.len() > 20, "src/ was not found: {found:?}");
    found
}

/// The room of a file: `web` for both `web/mod.rs` and `web/probes.rs`.
fn room(path: &Path) -> String {
    let first = path.iter().next().expect("a file").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// One line for each forbidden import of a file.
fn offences(path: &Path, text: &str) -> String {
    let room = room(path);
    let allowed = ARROWS.iter().find(|(known, _)| *known == room).map_or(&[][..], |(_, uses)| uses);
    let mut offences = String::new();
    for (line, statement, is_test) in statements(text) {
        let at = format!("src/{}:{line}:", path.display());
        for used in rooms_in(&statement, path, is_test) {
            if used != room && !allowed.contains(&used.as_str()) {
                let _ = writeln!(offences, "{at} {room} -> {used}: {}", statement.trim());
            }
        }
        for (fenced, allowed) in FENCED {
            if names(&statement, fenced) && !allowed.contains(&room.as_str()) {
                let _ = writeln!(offences, "{at} {room} names {fenced}: {}", statement.trim());
            }
        }
    }
    offences
}

/// The code of a file without comments and strings: each line, or each `use` with all of its lines, and whether it
/// stands below the first `#[cfg(test)]`.
fn statements(text: &str) -> Vec<(usize, String, bool)> {
    let mut statements: Vec<(usize, String, bool)> = Vec::new();
    let (mut inside_use, mut is_test) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let code = without_strings(line);
        let code = code.split("//").next().unwrap_or_default();
        is_test |= code.trim() == "#[cfg(test)]";
        match statements.last_mut().filter(|_| inside_use) {
            Some((_, statement, _)) => statement.push_str(code.trim()),
            None => statements.push((number + 1, code.to_owned(), is_test)),
        }
        let starts = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        let begins = starts.iter().any(|start| code.trim_start().starts_with(start));
        inside_use = (inside_use || begins) && !code.contains(';');
    }
    statements
}

fn without_strings(line: &str) -> String {
    let mut quoted = false;
    let mut escaped = false;
    line.chars()
        .filter(|letter| {
            let end = *letter == '"' && !escaped;
            escaped = *letter == '\\' && !escaped;
            quoted ^= end;
            !quoted && !end
        })
        .collect()
}

/// The rooms that a statement reaches through the crate's root.
fn rooms_in(statement: &str, path: &Path, is_test: bool) -> BTreeSet<String> {
    let depth = path.iter().count() + usize::from(is_test) - usize::from(path.ends_with("mod.rs"));
    // In `src/a/b.rs` two steps up are the root, in its tests three.
    let up = "super::".repeat(depth);
    let mut rooms = BTreeSet::new();
    for root in ["crate::", "rest_cascade::", up.as_str()] {
        for (at, _) in statement.match_indices(root) {
            let begins = !statement[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if begins {
                rooms.extend(first_names(&statement[at + root.len()..]));
            }
        }
    }
    rooms.retain(|name| ARROWS.iter().any(|(room, _)| room == name));
    rooms
}

/// `a` of `a::b`, and `a`, `c` of `{a::b, c}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let mut names = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

/// Whether `statement` has the path `fenced`, also when it is written as `hyper::{client, …}`.
fn names(statement: &str, fenced: &str) -> bool {
    let (outer, inner) = fenced.split_once("::").unwrap_or((fenced, ""));
    statement.match_indices(&format!("{outer}::")).any(|(at, root)| {
        let begins = !statement[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
        begins && (inner.is_empty() || first_names(&statement[at + root.len()..]).iter().any(|name| name == inner))
    })
}
