//! Far more root jobs than threads: all finish, and the cap holds. In a child process, for past the
//! system's limit the standard library would abort it.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};

const CHILD: &str = "NUCLEO_TEST_MANY_ROOTS_CHILD";
const ROOTS: usize = 100_000;
const PERMITS: u32 = 64;

// case RT-4
#[test]
fn a_hundred_thousand_roots_on_64_permits_finish_under_the_cap() {
    if std::env::var_os(CHILD).is_some() {
        run_them();
        return;
    }
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .args([
            "--exact",
            "a_hundred_thousand_roots_on_64_permits_finish_under_the_cap",
        ])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{told}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(told.contains(&format!("finished {ROOTS}")), "{told}");
    for line in told.lines().filter(|line| line.starts_with("finished")) {
        println!("{line}");
    }
}

fn run_them() {
    let dispatcher = JobDispatcher::builder()
        .stack_size(128 * 1024)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "many").unwrap();
    let gate = Arc::new(CountingGate::new("gate", PERMITS).unwrap());
    let handles: Vec<_> = (0..ROOTS)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    let finished = handles.iter().filter(|handle| handle.get().is_ok()).count();
    let threads = dispatcher.threads();
    assert!(threads.peak <= threads.cap, "{threads:?}");
    assert_eq!(gate.in_use(), 0);
    dispatcher.shutdown(Duration::from_secs(30)).unwrap();
    println!(
        "finished {finished}, peak {} of {} threads",
        threads.peak, threads.cap
    );
}
