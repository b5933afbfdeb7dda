//! What a user pulls in without asking for anything: no async executor, and little else.

use std::process::Command;

fn tree(arguments: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--prefix", "none", "--edges", "normal"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

const EXECUTORS: [&str; 8] = [
    "tokio",
    "async-std",
    "smol",
    "async-executor",
    "futures-executor",
    "glommio",
    "monoio",
    "embassy-executor",
];

#[test]
fn the_default_tree_has_no_executor_in_it() {
    let crates = tree(&["--no-default-features"]);
    assert!(
        crates.iter().any(|name| name == "crossbeam-channel"),
        "{crates:?}"
    );
    for executor in EXECUTORS {
        assert!(!crates.iter().any(|name| name == executor), "{executor}");
    }
}

#[test]
fn no_feature_brings_an_executor_yet() {
    let crates = tree(&["--features", "full"]);
    assert!(crates.iter().any(|name| name == "rusqlite"), "{crates:?}");
    for executor in EXECUTORS {
        assert!(!crates.iter().any(|name| name == executor), "{executor}");
    }
}
