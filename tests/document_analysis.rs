//! The main example, run as a user runs it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nucleo_runtime::db::sqlite::rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// `cargo test` builds the examples beside the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let name = format!("document_analysis{}", std::env::consts::EXE_SUFFIX);
    let example = profile.join("examples").join(name);
    assert!(
        example.is_file(),
        "{} is not built: run the whole of `cargo test`, or `cargo build --examples` first",
        example.display()
    );
    example
}

fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(example()).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one line on stdout.
fn figures(output: &Output) -> Value {
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 1, "stdout: {stdout}\n{}", stderr(output));
    serde_json::from_str(lines[0]).unwrap()
}

/// Nothing was begun: a message, nothing on stdout, exit code 1.
fn refused<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> String {
    let output = run(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    assert!(message.contains("error: "), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

fn folder_of(documents: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in documents {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

const SHIPS: &[u8] = b"# Ships\n\nShips call at the harbour. The harbour counts its ships.\n";
const TIDES: &[u8] = b"The tide turns the ships around. Nobody counts the tides.\n";

fn saved_paths(database: &Path) -> Vec<String> {
    let conn = Connection::open(database).unwrap();
    let mut paths = conn
        .prepare("SELECT path FROM analyses ORDER BY path")
        .unwrap();
    let paths = paths.query_map([], |row| row.get(0)).unwrap();
    paths.collect::<Result<_, _>>().unwrap()
}

#[test]
fn agents_share_three_connections_and_every_document_is_saved() {
    let output = run([
        "--make",
        "20",
        "--agents",
        "10",
        "--connections",
        "3",
        "--latency-ms",
        "1",
        "--json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let figures = figures(&output);
    let number = |field: &str| {
        figures[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field}: {figures}"))
    };
    for (field, expected) in [
        ("documents", 20),
        ("saved", 20),
        ("failed", 0),
        ("skipped", 0),
        // An agent and its five jobs a document, and the two that fill the database.
        ("jobs", 20 * 6 + 2),
    ] {
        assert_eq!(number(field), expected, "{field}");
    }
    assert!((1..=3).contains(&number("peak_connections")), "{figures}");
    assert!(number("statement_ms") <= number("connection_held_ms"));
    // Three calls a document, of which one reserves 4 096 tokens of answer and two 1 024.
    assert!(number("tokens_granted") > 20 * (4_096 + 2 * 1_024));
    assert!(number("wall_ms") > 0);
    let waits = figures["waits_ms"].as_object().unwrap();
    let accounts: Vec<_> = waits.keys().map(String::as_str).collect();
    assert_eq!(
        accounts,
        ["db:documents", "db:documents:write", "extractive", "http"]
    );
    assert!(waits.values().all(Value::is_u64));
    assert_eq!(figures.as_object().unwrap().len(), 11);
}

#[test]
fn a_second_run_replaces_documents_by_their_path() {
    let folder = folder_of(&[("ships.md", SHIPS), ("tides.txt", TIDES)]);
    let database = folder.path().join("analysis.db");
    let arguments = || {
        let flags = ["--json", "--latency-ms", "0", "--db"].map(OsStr::new);
        flags
            .into_iter()
            .chain([database.as_os_str(), folder.path().as_os_str()])
    };
    let first = run(arguments());
    assert!(first.status.success(), "{}", stderr(&first));
    fs::write(
        folder.path().join("tides.txt"),
        "The tide is out. It stays out.",
    )
    .unwrap();
    let second = run(arguments());
    assert!(second.status.success(), "{}", stderr(&second));
    assert_eq!(figures(&second)["saved"], 2);
    assert_eq!(saved_paths(&database), ["ships.md", "tides.txt"]);

    let conn = Connection::open(&database).unwrap();
    let matches = |word: &str| -> i64 {
        conn.query_row(
            "SELECT count(*) FROM paragraphs_index WHERE paragraphs_index MATCH ?1",
            [word],
            |row| row.get(0),
        )
        .unwrap()
    };
    assert_eq!(matches("nobody"), 0, "what was replaced is not found");
    assert_eq!(matches("tide"), 1);
    // Answers an error when the index does not agree with the paragraphs.
    conn.execute_batch(
        "INSERT INTO paragraphs_index (paragraphs_index) VALUES ('integrity-check')",
    )
    .unwrap();
}

#[test]
fn a_flag_that_cannot_work_is_named_with_its_rule() {
    for (arguments, named) in [
        (&["--agents", "0"][..], "--agents"),
        (&["--connections", "none"], "--connections"),
        (&["--tpm", "-5"], "--tpm"),
        (&["--latency-ms", "1.5"], "--latency-ms"),
        (&["--make", "4294967296"], "--make"),
        (&["--db"], "--db"),
        (&["--verbose"], "--verbose"),
        (&["--make", "3", "folder"], "--make"),
        (&["one", "two"], "FOLDER"),
        (&["--tpm", "5", "--catalog", "x.toml"], "--catalog"),
        (&["--catalog", "no-such.toml"], "no-such.toml"),
    ] {
        let message = refused(arguments);
        assert!(message.contains(named), "{arguments:?}: {message}");
    }
}

#[test]
fn the_model_comes_from_a_catalog_by_its_grade() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/catalog.toml");
    let flags = [
        "--make",
        "3",
        "--latency-ms",
        "0",
        "--json",
        "--catalog",
        sample,
    ];
    let output = run(flags);
    assert!(output.status.success(), "{}", stderr(&output));
    let figures = figures(&output);
    assert_eq!(figures["saved"], 3);
    assert!(figures["waits_ms"]["reader-small"].is_u64(), "{figures}");
}

#[test]
fn a_catalog_that_cannot_be_used_is_refused_with_its_faults() {
    let text = b"[[model]]\nid = \"m\"\nprovider = \"scripted\"\nsped = 1\n";
    let folder = folder_of(&[("bad.toml", text)]);
    let catalog = folder.path().join("bad.toml");
    let message = refused([OsStr::new("--catalog"), catalog.as_os_str()]);
    for fault in ["unknown key `sped`", "has no bound", "`grade` is missing"] {
        assert!(message.contains(fault), "{fault}: {message}");
    }
}

#[test]
fn help_is_no_error() {
    let output = run(["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for flag in [
        "FOLDER",
        "--make",
        "--agents",
        "--connections",
        "--catalog",
        "--tpm",
        "--latency-ms",
        "--db",
        "--json",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn a_folder_that_is_missing_or_none_is_refused() {
    let folder = folder_of(&[("file.md", SHIPS)]);
    let missing = folder.path().join("missing");
    assert!(refused([&missing]).contains("missing"));
    let file = folder.path().join("file.md");
    assert!(refused([&file]).contains("is not a folder"));
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // A link to itself: unreadable for every user.
    let endless = folder.path().join("endless");
    std::os::unix::fs::symlink(&endless, &endless).unwrap();
    assert!(refused([&endless]).contains("cannot read the folder"));
}

#[test]
fn a_folder_without_documents_is_refused() {
    let folder = folder_of(&[("picture.png", b"x"), ("empty.md", b"\n\n")]);
    let message = refused([folder.path()]);
    assert!(message.contains("no documents under"), "{message}");
    assert!(message.contains("empty.md"), "{message}");
}

#[cfg(unix)]
#[test]
fn files_that_cannot_be_read_are_skipped_and_reported_and_the_others_saved() {
    let folder = folder_of(&[
        ("ships.md", SHIPS),
        ("tides.txt", TIDES),
        ("binary.md", b"\xff\xfe"),
    ]);
    let endless = folder.path().join("endless.md");
    std::os::unix::fs::symlink(&endless, &endless).unwrap();
    let database = folder.path().join("analysis.db");
    let output = run([
        folder.path().as_os_str(),
        OsStr::new("--json"),
        OsStr::new("--db"),
        database.as_os_str(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    for skipped in ["binary.md", "endless.md"] {
        let line = message.lines().find(|line| line.contains(skipped));
        assert!(
            line.is_some_and(|line| line.starts_with("skipped ")),
            "{message}"
        );
    }
    let figures = figures(&output);
    assert_eq!(figures["skipped"], 2);
    assert_eq!(figures["failed"], 0);
    assert_eq!(figures["saved"], 2);
    assert_eq!(saved_paths(&database), ["ships.md", "tides.txt"]);
}

/// A pipe that nobody writes to would be read for ever.
#[cfg(unix)]
#[test]
fn a_named_pipe_is_skipped_and_nothing_waits_for_it() {
    let folder = folder_of(&[("ships.md", SHIPS)]);
    for pipe in ["pipe.md", "linked.txt"] {
        let made = Command::new("mkfifo")
            .arg(folder.path().join(format!("{pipe}.pipe")))
            .status();
        assert!(made.unwrap().success());
    }
    let pipes = folder.path();
    fs::rename(pipes.join("pipe.md.pipe"), pipes.join("pipe.md")).unwrap();
    std::os::unix::fs::symlink(pipes.join("linked.txt.pipe"), pipes.join("linked.txt")).unwrap();
    let output = run([folder.path().as_os_str(), OsStr::new("--json")]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for skipped in ["pipe.md", "linked.txt"] {
        let line = message.lines().find(|line| line.contains(skipped));
        assert!(
            line.is_some_and(|line| line.ends_with("it is not a regular file")),
            "{message}"
        );
    }
    let figures = figures(&output);
    assert_eq!(figures["skipped"], 2);
    assert_eq!(figures["saved"], 1);
}

#[test]
fn a_demand_that_the_quota_never_covers_fails_its_documents() {
    let output = run([
        "--make",
        "2",
        "--tpm",
        "1500",
        "--latency-ms",
        "0",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("1500 per minute"));
    let figures = figures(&output);
    assert_eq!(
        (&figures["failed"], &figures["saved"]),
        (&2.into(), &0.into())
    );
}

#[test]
fn a_database_that_cannot_be_used_is_refused_with_what_to_do() {
    let folder = folder_of(&[("ships.md", SHIPS), ("noise.db", &[0x5a; 8_192])]);
    let with = |database: &Path| {
        refused([
            folder.path().as_os_str(),
            OsStr::new("--json"),
            OsStr::new("--db"),
            database.as_os_str(),
        ])
    };
    let corrupt = with(&folder.path().join("noise.db"));
    assert!(corrupt.contains("not a sound database"), "{corrupt}");
    let nowhere = with(&folder.path().join("missing").join("analysis.db"));
    assert!(nowhere.contains("directory exists"), "{nowhere}");

    let other = folder.path().join("other.db");
    let conn = Connection::open(&other).unwrap();
    conn.execute_batch("CREATE TABLE theirs (id)").unwrap();
    assert!(with(&other).contains("another program"));
}

#[test]
fn what_was_saved_stays_when_the_database_is_locked_or_corrupt_later() {
    let folder = folder_of(&[("ships.md", SHIPS)]);
    let database = folder.path().join("analysis.db");
    let arguments = || {
        let flags = ["--json", "--latency-ms", "0", "--db"].map(OsStr::new);
        flags
            .into_iter()
            .chain([database.as_os_str(), folder.path().as_os_str()])
    };
    assert!(run(arguments()).status.success());

    fs::write(folder.path().join("tides.txt"), TIDES).unwrap();
    let holder = Connection::open(&database).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let locked = refused(arguments());
    assert!(locked.contains("kept it locked"), "{locked}");
    holder.execute_batch("ROLLBACK").unwrap();
    assert_eq!(saved_paths(&database), ["ships.md"]);

    // The index is broken, the rest is not.
    holder
        .execute_batch("UPDATE paragraphs_index_data SET block = x'00'")
        .unwrap();
    drop(holder);
    let corrupt = refused(arguments());
    assert!(corrupt.contains("not a sound database"), "{corrupt}");
    assert_eq!(saved_paths(&database), ["ships.md"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_ends_in_order_and_keeps_what_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.db");
    let mut child = Command::new(example())
        .args([
            "--make",
            "400",
            "--agents",
            "4",
            "--latency-ms",
            "20",
            "--json",
            "--db",
        ])
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let saved = || -> Option<i64> {
        let database = Connection::open(&file).ok()?;
        database
            .query_row("SELECT count(*) FROM analyses", [], |row| row.get(0))
            .ok()
    };
    while saved().unwrap_or(0) == 0 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it saved anything"
        );
        std::thread::yield_now();
    }
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let told = figures(&output);
    let kept = saved().unwrap();
    assert!((1..400).contains(&kept), "{kept}");
    assert_eq!(told["saved"], kept);
    let ended: i64 = ["saved", "failed", "skipped"]
        .iter()
        .filter_map(|field| told[field].as_i64())
        .sum();
    assert_eq!(told["documents"], ended, "{told}");
}

#[test]
fn rust_log_shows_a_run_by_program_by_job_and_by_kind() {
    let folder = folder_of(&[("ships.md", SHIPS)]);
    let logged = |rust_log: &str| -> Vec<String> {
        let output = Command::new(example())
            .arg(folder.path())
            .args(["--latency-ms", "0", "--json"])
            .env("RUST_LOG", rust_log)
            .output()
            .unwrap();
        // The figures stay alone on stdout.
        assert_eq!(figures(&output)["saved"], 1);
        stderr(&output)
            .lines()
            .filter(|line| line.contains("document_analysis::"))
            .map(|line| line.split_once("document_analysis::").unwrap().1.to_owned())
            .collect()
    };
    let agent = |line: &String| line.starts_with("jobs::AnalyseDocument::");
    let all = logged("document_analysis=info");
    // Three steps a job and the end of three roots: two that fill the database, an agent, its five.
    assert_eq!(all.len(), 8 * 3 + 3, "{all:#?}");
    let agents: Vec<_> = all.into_iter().filter(agent).collect();
    for (line, end) in agents.iter().zip([
        "[ships.md/SCHEDULED] Job scheduled (priority 0)",
        "[ships.md/RUNNING] Job started (attempt 1)",
        "[ships.md/COMPLETED] Job completed successfully (attempt 1)",
        "[ships.md/COMPLETED] Workflow completed successfully",
    ]) {
        assert!(line.ends_with(end), "{line}");
    }
    assert_eq!(
        logged("document_analysis::jobs::AnalyseDocument=info").len(),
        agents.len()
    );
    let ends = logged("document_analysis::jobs::AnalyseDocument::workflow=info");
    assert_eq!(ends.len(), 1, "{ends:#?}");
}
