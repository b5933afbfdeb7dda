//! A start for which there are no threads.

#![cfg(target_os = "linux")]

use std::env;
use std::process::Command;
use std::time::Duration;

use nucleo_runtime::{JobDispatcher, JobRequirements, SubmitError, Workflow, job_fn};

const INSIDE: &str = "NUCLEO_TEST_FEW_ADDRESSES";
/// A thread's stack, and the pieces in which addresses are taken up: a stack finds no room in what
/// is less than a piece, small allocations do.
const STACK: usize = 128 << 20;
const PIECE: usize = 64 << 20;

/// The system refuses threads to a process that has no addresses left, so this runs itself in one
/// that may have few.
#[test]
fn a_start_that_fails_leaves_the_dispatcher_as_it_was_and_a_later_one_succeeds() {
    if env::var_os(INSIDE).is_some() {
        return with_few_addresses();
    }
    let child = Command::new("sh")
        .args(["-c", "ulimit -v 3000000 && exec \"$0\" --exact \"$1\""])
        .arg(env::current_exe().unwrap())
        .arg("a_start_that_fails_leaves_the_dispatcher_as_it_was_and_a_later_one_succeeds")
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

fn with_few_addresses() {
    let dispatcher = JobDispatcher::builder().stack_size(STACK).build().unwrap();
    let workflow = Workflow::new("alice", "test").unwrap();
    let job = || job_fn(JobRequirements::none, |_, _| Ok(7));
    let reserved = dispatcher.threads().live;

    let mut taken = Vec::new();
    loop {
        let mut piece: Vec<u8> = Vec::new();
        if piece.try_reserve_exact(PIECE).is_err() {
            break;
        }
        taken.push(piece);
    }
    // With each piece that is given back one thread more may start, until all do.
    let mut failures = 0;
    while let Err(refusal) = dispatcher.start() {
        failures += 1;
        assert!(refusal.to_string().contains("did not start"), "{refusal}");
        assert!(!dispatcher.is_running());
        let submitted = dispatcher.submit(&workflow, job());
        assert!(matches!(submitted, Err(SubmitError::NotStarted)));
        assert!(
            dispatcher.threads().live < reserved,
            "no thread of it is left"
        );
        assert!(taken.pop().is_some(), "starts with all addresses there are");
    }
    // None, some and nearly all of the threads were started in vain.
    assert!(failures > 3, "{failures}");
    drop(taken);
    let handle = dispatcher.submit(&workflow, job()).unwrap();
    assert_eq!(*handle.get().unwrap(), 7);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_stack_that_cannot_be_is_refused_when_it_is_asked_for() {
    let error = JobDispatcher::builder()
        .stack_size(usize::MAX)
        .build()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("stack_size") && error.contains("at most"),
        "{error}"
    );
    // This one can be asked for, and is not given.
    let dispatcher = JobDispatcher::builder()
        .stack_size(usize::MAX / 4)
        .build()
        .unwrap();
    let error = dispatcher.start().unwrap_err();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.to_string().contains(&reason), "{error}");
}
