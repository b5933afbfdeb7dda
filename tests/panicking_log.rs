//! A log that panics keeps no job from ending. In a binary of its own: a process has one logger.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, ManualClock, Workflow,
};

thread_local! {
    /// Whether what this thread logs panics.
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

struct Full;

impl log::Log for Full {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        assert!(!ARMED.get(), "the log's disk is full: {}", record.args());
    }

    fn flush(&self) {}
}

/// Answers 7, and then something of its end is logged.
struct Logged {
    hook_panics: bool,
    drop_panics: bool,
}

impl Job for Logged {
    type Output = u32;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<u32, JobError> {
        ARMED.set(true);
        Ok(7)
    }

    fn post_execute(&mut self, _: Result<&u32, &JobError>, _: &JobContext) {
        assert!(!self.hook_panics, "in a hook");
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        assert!(!self.drop_panics, "in a destructor");
    }
}

#[test]
fn a_log_that_panics_at_the_end_of_a_job_keeps_no_handle_unanswered() {
    log::set_logger(&Full).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let clock = Arc::new(ManualClock::new());
    let dispatcher = JobDispatcher::builder().clock(clock).build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    for (hook_panics, drop_panics) in [(false, false), (true, false), (false, true), (true, true)] {
        let job = Logged {
            hook_panics,
            drop_panics,
        };
        let handle = dispatcher.submit(&workflow, job).unwrap();
        assert_eq!(*handle.get().unwrap(), 7);
    }
    assert_eq!(dispatcher.job_count(), 0);
    let report = dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(report.abandoned, Vec::<String>::new());
}
