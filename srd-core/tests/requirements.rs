//! `docs/protocol.md` and the code agree on which requirements there are.
//!
//! A requirement is defined by its number in bold brackets at the beginning of a paragraph, and cited in a `//` comment by
//! the number in brackets. Section 17 of the document excuses some from being cited.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The numbers in brackets in a line: `[W-1]`, or `[REL-3, REL-7]`.
fn ids(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in line.split('[').skip(1) {
        let Some((inside, _)) = part.split_once(']') else { continue };
        found.extend(inside.split(", ").filter(|id| is_id(id)).map(str::to_owned));
    }
    found
}

fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(area, number)| {
        ["W", "HS", "REL", "ACK", "RNR", "MTU", "CC", "SEC", "CARD"].contains(&area)
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

fn sources(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn code_and_document_name_the_same_requirements() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    let document = std::fs::read_to_string(root.join("docs/protocol.md")).unwrap();
    let mut defined = BTreeSet::new();
    let mut excused = BTreeSet::new();
    let mut section = "";
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        }
        if line.starts_with("**[") {
            let id = line.trim_start_matches("**[").split(']').next().unwrap().to_owned();
            assert!(is_id(&id), "{id} is no number of a requirement");
            assert!(defined.insert(id.clone()), "{id} is defined twice");
        }
        if section.starts_with("17.")
            && let Some(id) = line.strip_prefix("| ").and_then(|l| l.split(' ').next())
            && is_id(id)
        {
            excused.insert(id.to_owned());
        }
    }
    assert!(defined.len() > 50, "found {} requirements", defined.len());

    // In the running text, numbers stand without brackets.
    for word in document.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
        assert!(!is_id(word) || defined.contains(word), "the document mentions {word}, which it does not define");
    }

    let mut files = Vec::new();
    sources(&root.join("srd-core/src"), &mut files);
    sources(&root.join("srd-udp/src"), &mut files);
    files.sort();
    let mut cited: BTreeMap<String, String> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            for id in ids(comment) {
                cited.entry(id).or_insert(format!("{}:{}", file.display(), number + 1));
            }
        }
    }

    let unknown: Vec<_> = cited.iter().filter(|(id, _)| !defined.contains(*id)).collect();
    assert!(unknown.is_empty(), "cited, but not in docs/protocol.md: {unknown:?}");
    let uncited: Vec<_> = defined.iter().filter(|id| !cited.contains_key(*id) && !excused.contains(*id)).collect();
    assert!(
        uncited.is_empty(),
        "in docs/protocol.md, but neither cited by code nor excused in section 17: {uncited:?}"
    );
    let needless: Vec<_> = excused.iter().filter(|id| cited.contains_key(*id) || !defined.contains(*id)).collect();
    assert!(needless.is_empty(), "excused in section 17 without need: {needless:?}");
}
