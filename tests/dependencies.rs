//! Data flows one way through the crates: the table below is the whole truth, compared with what cargo says.

use std::collections::BTreeMap;
use std::process::Command;

/// Each package of the workspace and those of it that it may use.
const GRAPH: &[(&str, &[&str])] = &[
    ("basalt-proto", &[]),
    ("basalt-auth", &[]),
    ("basalt-log", &["basalt-proto"]),
    ("basalt-client", &["basalt-auth", "basalt-proto"]),
    ("basalt-load", &["basalt-proto"]),
    ("basalt-schema", &[]),
    (
        "basalt-columnar",
        &["basalt-log", "basalt-proto", "basalt-schema"],
    ),
    (
        "basalt-query",
        &[
            "basalt-columnar",
            "basalt-log",
            "basalt-proto",
            "basalt-schema",
        ],
    ),
    (
        "basalt-ingest",
        &[
            "basalt-auth",
            "basalt-columnar",
            "basalt-log",
            "basalt-proto",
        ],
    ),
    (
        "basalt",
        &[
            "basalt-auth",
            "basalt-client",
            "basalt-columnar",
            "basalt-ingest",
            "basalt-load",
            "basalt-log",
            "basalt-proto",
            "basalt-query",
            "basalt-schema",
        ],
    ),
];

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--offline",
            "--locked",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let mut uses: Vec<String> = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .filter(|dependency| dependency["kind"].is_null() && dependency["path"].is_string())
            .map(|dependency| dependency["name"].as_str().expect("name").to_owned())
            .collect();
        uses.sort_unstable();
        found.insert(package["name"].as_str().expect("name").to_owned(), uses);
    }
    let drawn: BTreeMap<String, Vec<String>> = GRAPH
        .iter()
        .map(|(name, uses)| {
            (
                (*name).to_owned(),
                uses.iter().map(|name| (*name).to_owned()).collect(),
            )
        })
        .collect();
    assert_eq!(found, drawn);
}

#[test]
fn there_is_one_arrow_in_the_tree() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock"))
        .expect("Cargo.lock");
    for package in ["arrow", "parquet", "object_store", "tonic", "prost"] {
        let entries = lock
            .lines()
            .filter(|line| *line == format!("name = \"{package}\""))
            .count();
        assert_eq!(entries, 1, "{package}: two copies share no types");
    }
}
