//! Attempts that run again: what is counted, what is waited, what is given back meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{
    Event, EventFamily, EventFilter, EventKind, RetryEvent, Subscription,
};
use nucleo_runtime::{
    ErrorKind, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources,
    ManualClock, RetrySignal, Workflow, job_fn,
};

struct Run {
    clock: ManualClock,
    dispatcher: JobDispatcher,
    workflow: Workflow,
}

impl Run {
    fn new() -> Self {
        let clock = ManualClock::new();
        let dispatcher = JobDispatcher::builder()
            .clock(Arc::new(clock.clone()))
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        Self {
            clock,
            dispatcher,
            workflow: Workflow::new("user", "test").unwrap(),
        }
    }

    fn retries(&self) -> (Subscription, mpsc::Receiver<Arc<Event>>) {
        let (sender, told) = mpsc::channel();
        let subscription = self
            .dispatcher
            .subscribe(
                EventFilter::all().family(EventFamily::Retry),
                Arc::new(move |event: &Arc<Event>| {
                    let _ = sender.send(Arc::clone(event));
                }),
            )
            .unwrap();
        (subscription, told)
    }

    fn end(self) {
        self.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}

/// Fails each attempt as its script says, then answers how many ran.
struct Failing {
    script: Vec<RetrySignal>,
    gate: Option<Arc<CountingGate>>,
    retries: u32,
    attempts: Arc<AtomicUsize>,
}

impl Failing {
    fn with(script: Vec<RetrySignal>) -> (Self, Arc<AtomicUsize>) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let job = Self {
            script,
            gate: None,
            retries: 3,
            attempts: Arc::clone(&attempts),
        };
        (job, attempts)
    }
}

impl Job for Failing {
    type Output = usize;

    fn upstream_retries(&self) -> u32 {
        self.retries
    }

    fn requirements(&self) -> JobRequirements {
        match &self.gate {
            Some(gate) => JobRequirements::none().permit(gate),
            None => JobRequirements::none(),
        }
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<usize, JobError> {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        match self.script.get(attempt) {
            Some(signal) => Err(signal.clone().into()),
            None => Ok(attempt + 1),
        }
    }
}

fn transient() -> RetrySignal {
    RetrySignal::transient("provider", "502 bad gateway")
}

/// Lets the next `count` waits pass as they are told.
fn pass_waits(run: &Run, told: &mpsc::Receiver<Arc<Event>>, count: usize) -> Vec<Duration> {
    (0..count)
        .map(|_| {
            let event = told.recv().unwrap();
            let Event::Retry(retry) = &*event else {
                panic!("not a retry: {event:?}");
            };
            let delay = retry.delay().unwrap_or_default();
            run.clock.advance(delay);
            delay
        })
        .collect()
}

// case RTY-05
#[test]
fn a_job_between_attempts_holds_nothing() {
    let run = Run::new();
    let (_subscription, told) = run.retries();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let (mut job, attempts) = Failing::with(vec![transient()]);
    job.gate = Some(Arc::clone(&gate));
    let handle = run.dispatcher.submit(&run.workflow, job).unwrap();
    let event = told.recv().unwrap();
    assert_eq!(gate.in_use(), 0);
    let Event::Retry(RetryEvent::Transient(retry)) = &*event else {
        panic!("not a transient retry: {event:?}");
    };
    let delay = retry.delay.unwrap();
    assert!((5..=30).contains(&delay.as_secs()), "{delay:?}");
    assert!(handle.try_get().unwrap().is_none());
    run.clock.advance(delay);
    assert_eq!(*handle.get().unwrap(), 2);
    assert_eq!((attempts.load(Ordering::SeqCst), gate.in_use()), (2, 0));
    run.end();
}

// case RTY-06
#[test]
fn a_budget_of_zero_executes_once_and_names_itself() {
    let run = Run::new();
    let (mut job, attempts) = Failing::with(vec![transient(); 9]);
    job.retries = 0;
    let error = run
        .dispatcher
        .submit(&run.workflow, job)
        .unwrap()
        .get()
        .unwrap_err();
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    let text = error.to_string();
    assert!(text.contains("transparent retry budget (0)"), "{text}");
    assert!(text.contains("502 bad gateway"), "{text}");
    let cause = std::error::Error::source(&error).unwrap();
    assert!(
        cause
            .downcast_ref::<JobError>()
            .unwrap()
            .retry_signal()
            .is_some()
    );
    run.end();
}

// case RTY-07
// case F13
#[test]
fn all_upstream_signals_draw_on_one_budget_of_three() {
    let run = Run::new();
    let (_subscription, told) = run.retries();
    let (job, attempts) = Failing::with(vec![
        RetrySignal::rate_limit("p", "429"),
        RetrySignal::overload("p", "529"),
        transient(),
        transient(),
    ]);
    let handle = run.dispatcher.submit(&run.workflow, job).unwrap();
    let delays = pass_waits(&run, &told, 3);
    let error = handle.get().unwrap_err();
    assert!(error.to_string().contains("budget (3)"), "{error}");
    assert_eq!(attempts.load(Ordering::SeqCst), 4);
    // Table T3, by attempt: 5-30, then an overload's 30-180, then 15-90.
    for (delay, (low, high)) in delays.iter().zip([(5, 30), (30, 180), (15, 90)]) {
        assert!((low..=high).contains(&delay.as_secs()), "{delays:?}");
    }
    run.end();
}

// case RTY-09
#[test]
fn corrections_stop_after_four() {
    let run = Run::new();
    let correction = RetrySignal::correction("model", 1, JobError::correctable("no title"));
    let (job, attempts) = Failing::with(vec![correction; 9]);
    let error = run
        .dispatcher
        .submit(&run.workflow, job)
        .unwrap()
        .get()
        .unwrap_err();
    assert_eq!(attempts.load(Ordering::SeqCst), 5);
    let text = error.to_string();
    assert!(
        text.contains("Exceeded max response correction retries (4)"),
        "{text}"
    );
    let cause = std::error::Error::source(&error).unwrap();
    assert!(
        cause
            .downcast_ref::<JobError>()
            .unwrap()
            .retry_signal()
            .is_some()
    );
    run.end();
}

// case RTY-10
#[test]
fn one_truncation_is_run_again_with_the_larger_budget() {
    let run = Run::new();
    let (job, _) = Failing::with(vec![RetrySignal::truncated("model-a", 1_000, Some(4_000))]);
    assert_eq!(
        *run.dispatcher
            .submit(&run.workflow, job)
            .unwrap()
            .get()
            .unwrap(),
        2
    );
    run.end();
}

// case RTY-11
#[test]
fn a_second_truncation_says_why_it_is_final() {
    for (second, why) in [
        ("model-a", "rebuilt its conversation"),
        ("model-b", "after failover from model-a"),
    ] {
        let run = Run::new();
        let (job, attempts) = Failing::with(vec![
            RetrySignal::truncated("model-a", 1_000, Some(4_000)),
            RetrySignal::truncated(second, 1_000, Some(4_000)),
        ]);
        let error = run
            .dispatcher
            .submit(&run.workflow, job)
            .unwrap()
            .get()
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains(why), "{text}");
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
        run.end();
    }
}

#[test]
fn a_cancellation_ends_the_wait_between_attempts_at_once() {
    let run = Run::new();
    let (_subscription, told) = run.retries();
    let (job, attempts) = Failing::with(vec![transient()]);
    let handle = run.dispatcher.submit(&run.workflow, job).unwrap();
    told.recv().unwrap();
    assert!(handle.cancel("not needed"));
    assert!(handle.get().unwrap_err().is_cancelled());
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    run.end();
}

#[test]
fn a_shutdown_ends_the_wait_between_attempts_at_once() {
    let run = Run::new();
    let (_subscription, told) = run.retries();
    let (job, _) = Failing::with(vec![transient()]);
    let handle = run.dispatcher.submit(&run.workflow, job).unwrap();
    told.recv().unwrap();
    // No time passes on the clock: the wait ends because it is told to.
    run.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert!(handle.get().unwrap_err().is_cancelled());
}

// case SUB-09
#[test]
fn requirements_are_asked_once_at_submission_and_once_an_attempt() {
    let run = Run::new();
    let (_subscription, told) = run.retries();
    let asked = Arc::new(AtomicUsize::new(0));
    let (attempts, counted) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&asked));
    let job = job_fn(
        move || {
            counted.fetch_add(1, Ordering::SeqCst);
            JobRequirements::none()
        },
        move |_, _| match attempts.fetch_add(1, Ordering::SeqCst) {
            0 => Err(transient().into()),
            _ => Ok(()),
        },
    );
    let handle: JobHandle<()> = run.dispatcher.submit(&run.workflow, job).unwrap();
    pass_waits(&run, &told, 1);
    handle.get().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    run.end();
}

#[test]
fn three_attempts_publish_three_starts() {
    let run = Run::new();
    let (sender, started) = mpsc::channel();
    let _started = run
        .dispatcher
        .subscribe(
            EventFilter::all().kind(EventKind::JobStarted),
            Arc::new(move |event: &Arc<Event>| {
                let _ = sender.send(event.message());
            }),
        )
        .unwrap();
    let (_subscription, told) = run.retries();
    let (job, _) = Failing::with(vec![transient(), transient()]);
    let handle = run.dispatcher.submit(&run.workflow, job).unwrap();
    pass_waits(&run, &told, 2);
    handle.get().unwrap();
    run.end();
    assert_eq!(
        started.iter().collect::<Vec<_>>(),
        (1..=3)
            .map(|n| format!("Job started (attempt {n})"))
            .collect::<Vec<_>>()
    );
}

// case F36
#[test]
fn a_failure_that_is_no_signal_runs_once() {
    let run = Run::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let job = job_fn(JobRequirements::none, move |_, _| -> Result<(), JobError> {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(JobError::external("mail", "sent, and then the line broke"))
    });
    assert!(
        run.dispatcher
            .submit(&run.workflow, job)
            .unwrap()
            .get()
            .is_err()
    );
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    run.end();
}
