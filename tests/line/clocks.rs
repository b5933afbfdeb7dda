//! A clock of the program's own that panics.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nucleo_runtime::admission::{Demand, Grant};
use nucleo_runtime::events::{EventFilter, MessageBus};
use nucleo_runtime::testing::{self, AdmissionBench, EventRecorder};
use nucleo_runtime::{Clock, JobContext, JobError, ManualClock, WaitCell};

use super::cases::gate;
use super::line::of;

/// One question that panics while it is set.
#[derive(Default)]
struct Switch(AtomicBool);

impl Switch {
    fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    fn pass(&self) {
        assert!(!self.0.load(Ordering::SeqCst), "the clock is broken");
    }
}

#[derive(Default)]
struct Faulty {
    clock: ManualClock,
    now: Switch,
    wall: Switch,
    /// The wait of the test's own threads.
    jobs_wait: Switch,
    /// The wait of the runtime's.
    wait: Switch,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl Clock for Faulty {
    fn now(&self) -> Instant {
        self.now.pass();
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        self.wall.pass();
        self.clock.wall()
    }

    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>) {
        let is_job = thread::current().name() == Some("job");
        let switch = if is_job { &self.jobs_wait } else { &self.wait };
        switch.pass();
        self.clock.wait_until(cell, seen, deadline);
        switch.pass();
    }
}

struct Bench {
    faulty: Arc<Faulty>,
    bus: MessageBus,
    admission: Arc<AdmissionBench>,
}

type Answers = mpsc::Receiver<Result<Grant, JobError>>;

impl Bench {
    fn new() -> Self {
        let faulty = Arc::new(Faulty::default());
        let clock: Arc<dyn Clock> = faulty.clone();
        let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
        bus.start();
        let admission = Arc::new(AdmissionBench::start(clock, &bus).unwrap());
        admission.quiesce();
        Self {
            faulty,
            bus,
            admission,
        }
    }

    fn context(&self) -> JobContext {
        let clock: Arc<dyn Clock> = Arc::new(self.faulty.clock.clone());
        testing::context(&clock, &self.bus, "user", None).unwrap()
    }

    fn admit(&self, demand: Demand) -> Result<Grant, JobError> {
        self.admission.admission().admit(demand, &self.context())
    }

    /// Asks on a thread of its own, which has parked when this returns.
    fn park(&self, demand: Demand) -> (JobContext, Answers) {
        let (say, answers) = mpsc::channel();
        let (admission, context) = (Arc::clone(&self.admission), self.context());
        let before = self.parked();
        let asked = context.clone();
        let ask = move || {
            say.send(admission.admission().admit(demand, &asked))
                .unwrap()
        };
        thread::Builder::new()
            .name("job".to_owned())
            .spawn(ask)
            .unwrap();
        while self.parked() == before {
            thread::yield_now();
        }
        (context, answers)
    }

    fn parked(&self) -> usize {
        self.admission.admission().queue_len()
    }
}

#[test]
fn a_calendar_that_panics_loses_events_and_no_verdict() {
    let bench = Bench::new();
    let recorder = EventRecorder::new();
    let subscribed = bench.bus.subscribe(EventFilter::all(), recorder.clone());
    let gate = gate("gate", 1);
    bench.faulty.wall.set(true);
    let held = bench.admit(of(&gate, ())).unwrap();
    let (_, first) = bench.park(of(&gate, ()));
    let (_, second) = bench.park(of(&gate, ()));
    held.release();
    drop(first.recv().unwrap().unwrap());
    bench.faulty.wall.set(false);
    drop(second.recv().unwrap().unwrap());
    assert_eq!((gate.in_use(), bench.parked()), (0, 0));
    assert!(!recorder.wait_for(1).is_empty());
    drop(subscribed);
}

#[test]
fn a_clock_that_panics_refuses_who_asks_and_keeps_no_permit() {
    let bench = Bench::new();
    let gate = gate("gate", 1);
    let held = bench.admit(of(&gate, ())).unwrap();
    bench.faulty.now.set(true);
    let error = bench.admit(of(&gate, ())).unwrap_err();
    assert!(error.to_string().contains("the clock is broken"), "{error}");
    held.release();
    assert_eq!(gate.in_use(), 0);
}

#[test]
fn an_evaluator_without_a_clock_fails_everyone_who_waits_or_asks() {
    let sleeping: fn(&Faulty) = |faulty| faulty.wait.set(true);
    let looking: fn(&Faulty) = |faulty| faulty.now.set(true);
    for breaks in [sleeping, looking] {
        let bench = Bench::new();
        let gate = gate("gate", 1);
        let held = bench.admit(of(&gate, ())).unwrap();
        let (_, waiting) = bench.park(of(&gate, ()));
        breaks(&bench.faulty);
        bench.admission.wake();
        let error = waiting.recv().unwrap().unwrap_err();
        assert!(error.to_string().contains("the clock is broken"), "{error}");
        bench.faulty.now.set(false);
        assert!(bench.admit(of(&gate, ())).is_err());
        held.release();
        assert_eq!((gate.in_use(), bench.parked()), (0, 0));
    }
}

#[test]
fn a_job_that_cannot_sleep_leaves_the_line_or_gives_back_what_it_was_granted() {
    let bench = Bench::new();
    let gate = gate("gate", 1);
    let held = bench.admit(of(&gate, ())).unwrap();
    bench.faulty.jobs_wait.set(true);
    let (say, answers) = mpsc::channel();
    let (admission, context) = (Arc::clone(&bench.admission), bench.context());
    let demand = of(&gate, ());
    let ask = move || {
        say.send(admission.admission().admit(demand, &context))
            .unwrap()
    };
    let job = thread::Builder::new().name("job".to_owned());
    job.spawn(ask).unwrap();
    let error = answers.recv().unwrap().unwrap_err();
    assert!(error.to_string().contains("the clock is broken"), "{error}");
    assert_eq!(bench.parked(), 0);

    // Granted while it slept, and then it panics.
    bench.faulty.jobs_wait.set(false);
    let (_, answers) = bench.park(of(&gate, ()));
    bench.admission.quiesce();
    bench.faulty.jobs_wait.set(true);
    held.release();
    assert!(answers.recv().unwrap().is_err());
    assert_eq!((gate.in_use(), bench.parked()), (0, 0));
    bench.faulty.clock.advance(Duration::from_secs(1));
    drop(bench.admit(of(&gate, ())).unwrap());
}
