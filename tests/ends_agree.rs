//! How a job ends, where its end is long, stuck or asked for twice: everybody is told the same.

use std::error::Error;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, GrantUnit, RateLimiter};
use nucleo_runtime::{
    ErrorKind, JobDispatcher, JobError, JobRequirements, JobState, ManualClock, ShutdownError,
    UpstreamFailure, Workflow, job_fn,
};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

#[test]
fn a_long_chain_of_failed_dependencies_ends_with_the_first_failure_in_reach() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let stuck = Stuck::default();
    let first = stuck.clone();
    let mut last = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, _| {
                first.here();
                Err::<(), _>(JobError::uncorrectable("the first"))
            }),
        )
        .unwrap();
    for _ in 0..10_000 {
        last = dispatcher
            .submit_with(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
            .after(&last)
            .submit()
            .unwrap();
    }
    stuck.let_go();
    let error = last.get().unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::DependencyFailed { .. }
    ));
    let mut deepest: &dyn Error = &error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    assert_eq!(deepest.to_string(), "the first");
    assert!(format!("{error:?}").len() < 10_000);
    drop((last, error));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}
