//! The documentation holds what it promises: links lead somewhere, commands are taken, YAML is read.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Every page, by its path from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root().join("docs")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.insert(path.clone(), fs::read_to_string(path).unwrap());
            }
        }
    }
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let path = root().join(name);
        found.insert(path.clone(), fs::read_to_string(path).unwrap());
    }
    assert!(found.len() > 15);
    found
}

/// Lines outside of fenced and indented code, and those inside.
fn divided(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut prose, mut code) = (Vec::new(), Vec::new());
    let (mut fenced, mut before_is_text) = (false, false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || (line.starts_with("    ") && !before_is_text) {
            code.push(line);
            continue;
        } else {
            prose.push(line);
        }
        before_is_text = !line.trim().is_empty();
    }
    (prose, code)
}

/// What a heading is linked by.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links(line: &str) -> Vec<&str> {
    let ends = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
    ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for target in divided(text).0.iter().flat_map(|line| links(line)) {
            if target.starts_with("http://") || target.starts_with("https://") {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let there = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let Ok(there) = there.canonicalize() else {
                broken.push(format!("{}: {target}", page.display()));
                continue;
            };
            let has = |text: &String| {
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                headings.any(|heading| anchor(heading) == fragment)
            };
            let docs = root().join("docs");
            if page.starts_with(&docs) && !there.starts_with(&docs) {
                broken.push(format!("{}: {target} is not in the book", page.display()));
            }
            if !fragment.is_empty() && !pages.get(&there).is_some_and(has) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_in_the_book() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = summary
        .lines()
        .flat_map(links)
        .map(|target| docs.join(target))
        .collect();
    let inside = |page: &&PathBuf| page.starts_with(&docs) && !page.ends_with("SUMMARY.md");
    let pages = pages();
    for page in pages.keys().filter(inside) {
        assert!(
            listed.contains(page),
            "docs/SUMMARY.md does not list {}",
            page.display()
        );
    }
}

/// What the program says about a command, or about itself.
fn help(command: &str) -> String {
    let args: &[&str] = if command.is_empty() {
        &["help"]
    } else {
        &["help", command]
    };
    let out = Command::new(env!("CARGO_BIN_EXE_ferry"))
        .args(args)
        .output()
        .unwrap();
    assert!(out.status.success(), "ferry help {command}");
    String::from_utf8(out.stdout).unwrap()
}

fn commands() -> BTreeSet<String> {
    let help = help("");
    let (_, rest) = help.split_once("\nCommands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    lines
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

/// Command lines of ferry and of `cargo xtask` in code, and in backquotes.
fn command_lines(text: &str) -> Vec<String> {
    let (prose, code) = divided(text);
    let code = code.into_iter().map(str::to_owned);
    let quoted = prose
        .iter()
        .flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned));
    let begins = |line: &String| {
        let line = line.trim_start();
        line.starts_with("ferry ") || line.starts_with("cargo xtask ") || line.starts_with("sudo ferry ")
    };
    code.chain(quoted).filter(begins).collect()
}

#[test]
fn every_command_line_is_one_that_the_program_takes() {
    let known = commands();
    let xtask = fs::read_to_string(root().join("xtask/src/main.rs"))
        .unwrap()
        .to_lowercase();
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (page, text) in pages() {
        for line in command_lines(&text) {
            let line = line.trim_start().trim_start_matches("sudo ");
            let line = line
                .split("  ")
                .next()
                .unwrap_or(line)
                .split(" #")
                .next()
                .unwrap_or(line);
            let mut words = line.split_whitespace();
            seen += 1;
            if words.next() == Some("cargo") {
                let name = words.nth(1).unwrap_or_default();
                let plain = name.chars().all(|c| c.is_ascii_lowercase());
                if plain && !name.is_empty() && !xtask.contains(&format!("\n    {name}")) {
                    wrong.push(format!("{}: {line}", page.display()));
                }
                continue;
            }
            let command = words
                .clone()
                .next()
                .filter(|word| !word.starts_with('-'))
                .unwrap_or_default();
            let is_name = !command.is_empty() && command.chars().all(|c| c.is_ascii_lowercase());
            if is_name && !known.contains(command) {
                wrong.push(format!("{}: {line}", page.display()));
                continue;
            }
            let name = if is_name { command } else { "" };
            let own = texts.entry(name.to_owned()).or_insert_with(|| help(name)).clone();
            let all = texts.entry(String::new()).or_insert_with(|| help(""));
            let flags = words.filter_map(|word| word.strip_prefix("--")).map(|word| {
                word.split(['=', ',', ';', ')'])
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches(['.', ':'])
            });
            for flag in flags.filter(|flag| !flag.is_empty()) {
                let flag = format!("--{flag}");
                let has = |text: &str| text.split([' ', ',', '\n', '\'']).any(|word| word == flag);
                if !has(&own) && !has(all) {
                    wrong.push(format!("{}: {line}: {flag}", page.display()));
                }
            }
        }
    }
    assert!(seen > 50, "only {seen} command lines");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_piece_of_yaml_is_yaml() {
    for (page, text) in pages() {
        for piece in text.split("```yaml\n").skip(1) {
            let piece = piece.split("```").next().unwrap_or_default();
            let read: Result<Vec<serde_json::Value>, _> = serde_saphyr::from_multiple(piece);
            assert!(read.is_ok(), "{}: {piece}\n{read:?}", page.display());
        }
    }
}
