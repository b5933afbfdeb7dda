//! What users test their own jobs, limits and providers with.
//!
//! A test owns time through [`ManualClock`](crate::ManualClock), and says "and nothing more
//! happened" with [`quiesce`]; it never sleeps.

pub mod account_contract;
pub mod db_provider_contract;
mod faulty_provider;
mod recorder;

pub use crate::admission::memory_source::ScriptedMemory;
pub use crate::admission::stepped::{SteppedLine, Walked};

use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Admission, MemorySettings, MemorySource, refuse_reentry};
use crate::clock::Clock;
use crate::dispatcher::JobDispatcher;
use crate::error::JobError;
use crate::events::MessageBus;
use crate::job::{JobContext, Workflow};
use crate::threads::{DEFAULT_STACK, Threads, derived_cap};

pub use faulty_provider::{Fault, FaultyProvider};
pub use recorder::EventRecorder;

/// Returns once the evaluator, the timer, the queues and the bus have handled everything up to the
/// present instant of the dispatcher's clock.
///
/// Jobs' own threads are not waited for: a job is at liberty to run on. Neither are threads that have not
/// been started, or that have ended with their dispatcher; nor anything from inside an account's answer.
pub fn quiesce(dispatcher: &JobDispatcher) {
    if refuse_reentry("quiesce").is_ok() {
        dispatcher.quiesce();
    }
}

/// The context of a job that belongs to no dispatcher, for testing what works on one. Its deadline
/// is `timeout` from now.
///
/// # Errors
/// `InvalidInput` for a blank user.
pub fn context(
    clock: &Arc<dyn Clock>,
    bus: &MessageBus,
    user: &str,
    timeout: Option<Duration>,
) -> Result<JobContext, JobError> {
    let workflow = Workflow::new(user, "test")?;
    Ok(JobContext::standalone(
        &workflow,
        "TestJob",
        timeout,
        Arc::clone(clock),
        bus.clone(),
    ))
}

/// An admission without a dispatcher, for testing limits of one's own in a line.
#[derive(Debug)]
pub struct AdmissionBench {
    admission: Admission,
    clock: Arc<dyn Clock>,
}

impl AdmissionBench {
    /// Starts an admission that publishes on `bus`.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(clock: Arc<dyn Clock>, bus: &MessageBus) -> Result<Self, JobError> {
        Self::launch(clock, bus, None)
    }

    /// As [`start`](Self::start), with a memory gate that reads `source`. With `progress` one
    /// demand goes every 30 seconds while memory refuses everyone and nothing is granted.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn with_memory(
        clock: Arc<dyn Clock>,
        bus: &MessageBus,
        source: impl MemorySource,
        progress: bool,
    ) -> Result<Self, JobError> {
        let source = Arc::new(source);
        Self::launch(clock, bus, Some(MemorySettings { source, progress }))
    }

    fn launch(
        clock: Arc<dyn Clock>,
        bus: &MessageBus,
        memory: Option<MemorySettings>,
    ) -> Result<Self, JobError> {
        let admission = Admission::new(Arc::clone(&clock), bus.clone(), memory);
        let threads = Threads::new(derived_cap(), DEFAULT_STACK);
        let seat = threads.try_seat(usize::MAX).ok_or_else(|| {
            JobError::system("admission", "this system has no thread for the evaluator")
        })?;
        admission.start(seat)?;
        Ok(Self { admission, clock })
    }

    /// The admission.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Has the evaluator look again, as a change of an account does.
    pub fn wake(&self) {
        self.admission.evaluator_cell().notify();
    }

    /// Returns once the evaluator has handled everything up to the present instant, or has ended; at once
    /// from inside an account's answer.
    pub fn quiesce(&self) {
        if refuse_reentry("quiesce").is_ok() {
            self.admission.evaluator_cell().wait_quiet(&*self.clock);
        }
    }

    /// Refuses whoever waits or asks later, as a shutdown does.
    pub fn stop(&self) {
        self.admission.stop();
    }
}

impl Drop for AdmissionBench {
    fn drop(&mut self) {
        self.admission.stop();
    }
}

/// Tells a job to stop that belongs to no dispatcher, as its dispatcher would. Answers whether it
/// was the first time.
pub fn cancel(context: &JobContext, reason: &str) -> bool {
    let first = context.core().signal_cancellation(reason, reason);
    context.core().fire_cancellation();
    first
}
