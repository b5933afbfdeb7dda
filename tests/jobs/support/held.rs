//! Jobs that are stuck until the test lets them go.

use std::sync::mpsc::{self, Receiver, Sender};

use nucleo_runtime::{Job, JobRequirements, job_fn};

/// The test's end of a job that is stuck.
pub struct Held {
    started: Receiver<()>,
    release: Sender<()>,
}

impl Held {
    /// Returns once the job executes.
    pub fn wait_until_running(&self) {
        self.started.recv().unwrap();
    }

    /// Lets the job end.
    pub fn release(&self) {
        self.release.send(()).unwrap();
    }
}

/// A job that executes until it is let go, looks at nothing meanwhile, and answers "held".
pub fn held(
    requirements: impl Fn() -> JobRequirements + Send + 'static,
) -> (impl Job<Output = &'static str>, Held) {
    let (starting, started) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let job = job_fn(requirements, move |_, _| {
        // A test that does not wait for the start may be gone by then.
        let _ = starting.send(());
        released.recv().unwrap();
        Ok("held")
    });
    (job, Held { started, release })
}
