//! The fuzzers' corpora (`fuzz/corpus`), run without libFuzzer. `BASALT_WRITE_CORPUS=1` writes the seeds anew from the golden
//! files.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/frames.rs"]
mod frames;
#[path = "../../fuzz/src/session.rs"]
mod session;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The bytes of the golden files whose names begin so.
fn golden(prefixes: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("tests/golden")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let digits: Vec<char> = lines
            .flat_map(str::chars)
            .filter(char::is_ascii_hexdigit)
            .collect();
        let byte = |pair: &[char]| {
            let pair: String = pair.iter().collect();
            u8::from_str_radix(&pair, 16).unwrap()
        };
        found.push((name, digits.chunks(2).map(byte).collect()));
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

fn write(target: &str, seeds: &[(String, Vec<u8>)]) {
    if std::env::var_os("BASALT_WRITE_CORPUS").is_none() {
        return;
    }
    let folder = root().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in seeds {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = root().join("fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        files += 1;
    }
    assert!(files > 0, "no corpus for {target}");
}

#[test]
fn the_corpus_of_frames_meets_no_surprise() {
    let mut seeds = golden(&["frame-"]);
    let all: Vec<u8> = seeds.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    seeds.push(("frames-all".to_owned(), all));
    write("frames", &seeds);
    replay("frames", frames::run);
}

#[test]
fn the_corpus_of_sessions_meets_no_surprise() {
    let seeds = golden(&["opening-", "request-", "response-", "ack-"]);
    write("session", &seeds);
    replay("session", session::run);
}
