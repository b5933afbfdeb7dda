//! How a job ends that is not admitted: by the account's own error, or because admission stops.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, RateLimiter, Replenishment,
};
use nucleo_runtime::events::{EventFilter, EventKind};
use nucleo_runtime::guard::{AdmissionGuard, AdmissionRequest, Gate, Guard, Guards};
use nucleo_runtime::testing::{self, EventRecorder};
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobState, ManualClock,
    RetrySignal, Workflow, job_fn,
};

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(ManualClock::new()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("user", "test").unwrap())
}

#[test]
fn callbacks_run_when_the_shutdown_finds_their_job_waiting_to_be_admitted_again() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let runs = Arc::new(AtomicUsize::new(0));
    let captured = Arc::new(());
    let alive = Arc::downgrade(&captured);

    let (start, started) = mpsc::channel();
    let (fail, failing) = mpsc::channel::<()>();
    let (needed, counted) = (Arc::clone(&gate), Arc::clone(&runs));
    let mut captured = Some(captured);
    let job = job_fn(
        move || JobRequirements::none().permit(&needed),
        move |_, context| {
            let held = (captured.take().unwrap(), context.clone());
            let counted = Arc::clone(&counted);
            context.on_cancel(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(held);
            });
            start.send(()).unwrap();
            failing.recv().unwrap();
            let signal = RetrySignal::correction("model", 1, JobError::correctable("again"));
            Err::<(), _>(signal.into())
        },
    );
    let job = dispatcher.submit(&workflow, job).unwrap();
    started.recv().unwrap();

    // Somebody else is admitted before it is again.
    let (start, started) = mpsc::channel();
    let (end, ending) = mpsc::channel::<()>();
    let needed = Arc::clone(&gate);
    let other = job_fn(
        move || JobRequirements::none().permit(&needed),
        move |_, _| {
            start.send(()).unwrap();
            ending.recv().unwrap();
            Ok(())
        },
    );
    let other = dispatcher.submit(&workflow, other).unwrap();
    let in_line = |count| {
        while dispatcher.admission().queue_len() != count {
            thread::yield_now();
        }
    };
    in_line(1);
    fail.send(()).unwrap();
    started.recv().unwrap();
    in_line(1);

    thread::scope(|scope| {
        let shutdown = scope.spawn(|| dispatcher.shutdown(Duration::from_secs(5)).unwrap());
        assert!(job.get().unwrap_err().is_cancelled());
        let ran = runs.load(Ordering::SeqCst);
        end.send(()).unwrap();
        other.get().unwrap();
        shutdown.join().unwrap();
        assert_eq!(ran, 1, "before its handle answers");
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(alive.upgrade().is_none(), "what it held is gone");
}

/// Refuses, with the error that it is given.
struct Closed {
    key: AccountKey,
    error: JobError,
    /// Whether it only has nothing at present, so that whoever asks waits.
    waits: Mutex<bool>,
}

impl RateLimiter for Closed {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        if *self.waits.lock().unwrap() {
            return Ok(false);
        }
        Err(self.error.clone())
    }

    fn try_take(&self, mine: &[()], ahead: &[()], now: Instant) -> Result<bool, JobError> {
        self.fits(mine, ahead, now)
    }

    fn give(&self, _: &[()], _: Instant) {}

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

#[test]
fn an_account_that_refuses_with_a_cancellation_of_its_own_fails_the_job_with_it() {
    for waits_first in [false, true] {
        let (dispatcher, workflow) = started();
        let events = EventRecorder::new();
        let _subscription = dispatcher
            .subscribe(EventFilter::all(), events.clone())
            .unwrap();
        let account = Arc::new(Closed {
            key: AccountKey::new("tenant"),
            error: JobError::cancelled("the quota of tenant 7 is closed"),
            waits: Mutex::new(waits_first),
        });
        let needed = Arc::clone(&account);
        let job = job_fn(
            move || JobRequirements::none().limiter(&needed, ()),
            |_, _| Ok(()),
        );
        let job = dispatcher.submit(&workflow, job).unwrap();
        if waits_first {
            while dispatcher.admission().queue_len() == 0 {
                thread::yield_now();
            }
            *account.waits.lock().unwrap() = false;
            account.key.capacity_grew();
        }
        let error = job.get().unwrap_err();
        assert!(error.to_string().contains("tenant 7"), "{error}");
        assert_eq!(job.snapshot().state(), JobState::Failed);
        testing::quiesce(&dispatcher);
        let told: Vec<_> = events.events().iter().map(|event| event.kind()).collect();
        assert!(told.contains(&EventKind::JobFailed), "{told:?}");
        assert!(!told.contains(&EventKind::JobCancelled), "{told:?}");
        dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}

/// Says that it judges, and fails with a cancellation of its own once the dispatcher stops.
struct Unwilling {
    judging: mpsc::SyncSender<()>,
    dispatcher: JobDispatcher,
}

impl Guard for Unwilling {}

impl AdmissionGuard for Unwilling {
    fn judge(&self, _: &AdmissionRequest, _: &Gate<'_>) -> Result<(), JobError> {
        self.judging.send(()).unwrap();
        while self.dispatcher.is_running() {
            thread::yield_now();
        }
        Err(JobError::cancelled("the judge went home"))
    }
}

struct Gated(Guards);

impl Job for Gated {
    type Output = ();

    fn guards(&self) -> Guards {
        self.0.clone()
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

#[test]
fn a_guard_that_fails_with_a_cancellation_of_its_own_during_a_shutdown_fails_the_job() {
    let (dispatcher, workflow) = started();
    let (judging, judges) = mpsc::sync_channel(1);
    let guard = Unwilling {
        judging,
        dispatcher: dispatcher.clone(),
    };
    let job = Gated(Guards::none().admission(guard));
    let job = dispatcher.submit(&workflow, job).unwrap();
    judges.recv().unwrap();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    let error = job.get().unwrap_err();
    assert!(error.to_string().contains("went home"), "{error}");
    assert_eq!(job.snapshot().state(), JobState::Failed);
}
