//! The bus under load, and subscribers that misbehave: who suffers is whoever misbehaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, SystemTime};

use nucleo_runtime::events::{
    AppEvent, Event, EventFamily, EventFilter, EventKind, MessageBus, Subscription,
};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    JobContext, JobDispatcher, JobError, JobRequirements, ManualClock, Workflow, doer_fn, job_fn,
};

const PUBLISHERS: usize = 8;
const EACH: usize = 12_500;
const ALL: usize = PUBLISHERS * EACH;
/// How many events may wait for one subscription (BUS-4).
const LIMIT: usize = 1_000_000;

#[derive(Debug)]
struct Numbered {
    publisher: usize,
    n: usize,
}

impl AppEvent for Numbered {
    fn name(&self) -> &str {
        "numbered"
    }
}

fn numbered(publisher: usize, n: usize) -> Event {
    Event::app(Arc::new(Numbered { publisher, n }), SystemTime::UNIX_EPOCH)
}

fn number_of(event: &Event) -> Option<&Numbered> {
    match event {
        Event::App(envelope) => envelope.downcast(),
        _ => None,
    }
}

fn running_bus() -> MessageBus {
    let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
    bus.start();
    bus
}

/// What an observer heard, by publisher.
#[derive(Default)]
struct Tally {
    heard: Mutex<Vec<Vec<usize>>>,
}

impl Tally {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            heard: Mutex::new(vec![Vec::new(); PUBLISHERS]),
        })
    }

    fn hear(&self, event: &Event) {
        if let Some(number) = number_of(event) {
            self.heard.lock().unwrap()[number.publisher].push(number.n);
        }
    }

    fn count(&self) -> usize {
        self.heard.lock().unwrap().iter().map(Vec::len).sum()
    }

    /// Whether it heard each publisher from its first event on, without a gap.
    fn is_gapless(&self) -> bool {
        let heard = self.heard.lock().unwrap();
        heard
            .iter()
            .all(|numbers| numbers.iter().enumerate().all(|(at, n)| at == *n))
    }
}

/// An observer that says when it hears its first event, and then hears nothing until it is let on.
fn stalled(
    then: impl Fn(&Event) + Send + Sync + 'static,
) -> (
    impl Fn(&Arc<Event>) + Send + Sync + 'static,
    Receiver<()>,
    Sender<()>,
) {
    let (begun, begins) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let observer = move |event: &Arc<Event>| {
        let _ = begun.send(());
        let _ = gate.lock().unwrap().recv();
        then(event);
    };
    (observer, begins, go)
}

/// Ends with a panic that writes nothing on stderr.
fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("as planned"))
}

/// Lets the clock run until `work` is done.
fn while_time_passes<T: Send>(clock: &ManualClock, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            clock.advance(Duration::from_millis(100));
            thread::yield_now();
        }
        working.join().unwrap()
    })
}

// case BUS-01
// case BUS-06
// case BUS-10
#[test]
fn under_load_each_subscriber_delays_and_harms_itself_alone() {
    let bus = running_bus();
    let tallies: Vec<_> = (0..4).map(|_| Tally::new()).collect();
    let [fast, slow, panicking, leaving] = &tallies[..] else {
        unreachable!()
    };
    let ear = |tally: &Arc<Tally>| {
        let tally = Arc::clone(tally);
        move |event: &Event| tally.hear(event)
    };
    let hear = ear(fast);
    let _fast = bus
        .subscribe(
            EventFilter::all(),
            Arc::new(move |event: &Arc<Event>| hear(event)),
        )
        .unwrap();
    let (observer, begun, go) = stalled(ear(slow));
    let _slow = bus
        .subscribe(EventFilter::all(), Arc::new(observer))
        .unwrap();
    let hear = ear(panicking);
    let _panicking = bus
        .subscribe(
            EventFilter::all(),
            Arc::new(move |event: &Arc<Event>| {
                hear(event);
                if number_of(event).is_some_and(|number| number.n % 1_000 == 0) {
                    quiet_panic();
                }
            }),
        )
        .unwrap();
    // Leaves in the middle, from inside of its own observation.
    let own: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let (hear, ending) = (ear(leaving), Arc::clone(&own));
    let subscription = bus
        .subscribe(
            EventFilter::all().app::<Numbered>(),
            Arc::new(move |event: &Arc<Event>| {
                hear(event);
                if number_of(event).is_some_and(|number| number.n == EACH / 2) {
                    drop(ending.lock().unwrap().take());
                }
            }),
        )
        .unwrap();
    *own.lock().unwrap() = Some(subscription);

    thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let bus = &bus;
            scope.spawn(move || (0..EACH).for_each(|n| bus.publish(numbered(publisher, n))));
        }
    });
    // Everything is published, and the slow one still has its first event in hand.
    begun.recv().unwrap();
    assert_eq!(slow.count(), 0);
    let waiting = bus.subscriptions().into_iter().map(|status| status.waiting);
    assert_eq!(waiting.max(), Some(ALL as u64 - 1));

    drop(go);
    let report = bus.stop().unwrap();
    assert_eq!((report.abandoned, report.undelivered), (0, 0));
    for tally in [fast, slow, panicking] {
        assert_eq!(tally.count(), ALL);
        assert!(tally.is_gapless());
    }
    assert!(leaving.is_gapless());
    assert!(leaving.count() >= EACH / 2);
    bus.publish(numbered(0, EACH));
    assert_eq!(fast.count(), ALL);
}

// case BUS-02
// case BUS-14
// case BUS-15
#[test]
fn under_load_every_filter_counts_exactly() {
    const JOBS: usize = 250;
    let dispatcher = JobDispatcher::builder()
        .stack_size(128 * 1024)
        .build()
        .unwrap();
    let recorders: HashMap<&str, Arc<EventRecorder>> =
        ["one", "lifecycle", "chat", "closures", "everything"]
            .into_iter()
            .map(|name| (name, EventRecorder::new()))
            .collect();
    let flows: Vec<_> = (0..2)
        .map(|_| Workflow::new("user", "load").unwrap())
        .collect();
    let filters = [
        ("one", EventFilter::all().workflow(flows[0].id())),
        (
            "lifecycle",
            EventFilter::all().family(EventFamily::Lifecycle),
        ),
        ("chat", EventFilter::all().app::<Numbered>()),
        ("closures", EventFilter::all().job_type("FnDoer")),
        ("everything", EventFilter::all()),
    ];
    for (name, filter) in filters {
        let recorder = recorders[name].clone();
        dispatcher.subscribe(filter, recorder).unwrap().detach();
    }
    dispatcher.start().unwrap();
    let handles: Vec<_> = (0..JOBS)
        .flat_map(|n| flows.iter().map(move |flow| (n, flow)))
        .map(|(n, flow)| {
            let orchestrator = doer_fn(move |context| {
                let leaf = job_fn(JobRequirements::none, move |_, context: &JobContext| {
                    context.publish("half", Some(50));
                    context.publish_event(Arc::new(Numbered { publisher: 0, n }));
                    Ok(())
                });
                context.submit(leaf)?.get()?;
                Ok(())
            });
            dispatcher.submit(flow, orchestrator).unwrap()
        })
        .collect();
    for handle in &handles {
        handle.get().unwrap();
    }
    quiesce(&dispatcher);
    let count = |name: &str| recorders[name].events().len();
    // Of each orchestrator: three steps and the workflow's end; of its leaf: three steps, its
    // progress and its own event.
    assert_eq!(count("one"), JOBS * 9);
    assert_eq!(count("lifecycle"), 2 * JOBS * 6);
    assert_eq!(count("chat"), 2 * JOBS);
    assert_eq!(count("closures"), 2 * JOBS * 4);
    // And the dispatcher's start.
    assert_eq!(count("everything"), 2 * JOBS * 9 + 1);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

/// Publishes on the job that runs on its thread whenever a line tells of dropped events: what is
/// logged under a lock of the runtime's would hang here.
struct Nosy;

static TOLD: AtomicUsize = AtomicUsize::new(0);

impl log::Log for Nosy {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Error
    }

    fn log(&self, record: &log::Record<'_>) {
        if !record.args().to_string().contains("dropped") {
            return;
        }
        TOLD.fetch_add(1, Ordering::SeqCst);
        if let Some(context) = JobContext::current() {
            context.publish("events were dropped", None);
        }
    }

    fn flush(&self) {}
}

// case F28
#[test]
fn a_subscriber_that_stalls_for_ever_is_bounded_and_counted_and_harms_nobody() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Nosy).unwrap();
        log::set_max_level(log::LevelFilter::Error);
    });
    const PAST: usize = 50_000;
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let (observer, begun, go) = stalled(|_| {});
    let only = EventFilter::all().app::<Numbered>();
    let stuck = dispatcher
        .subscribe(only.clone(), Arc::new(observer))
        .unwrap();
    let tally = Tally::new();
    let hear = Arc::clone(&tally);
    let _sibling = dispatcher
        .subscribe(only, Arc::new(move |event: &Arc<Event>| hear.hear(event)))
        .unwrap();
    let news = EventRecorder::new();
    let progress = EventFilter::all().kind(EventKind::JobProgress);
    let _news = dispatcher.subscribe(progress, news.clone()).unwrap();

    let workflow = Workflow::new("user", "flood").unwrap();
    let flood = |from: usize, count: usize| {
        let job = job_fn(JobRequirements::none, move |_, context: &JobContext| {
            for n in from..from + count {
                context.publish_event(Arc::new(Numbered { publisher: 0, n }));
            }
            Ok(())
        });
        dispatcher
            .submit(&workflow, job.timeout(None))
            .unwrap()
            .get()
            .unwrap();
    };
    flood(0, 1);
    begun.recv().unwrap();
    flood(1, LIMIT + PAST);

    let full = dispatcher.bus().subscriptions();
    let full = full.iter().find(|status| status.id == stuck.id()).unwrap();
    assert_eq!((full.waiting, full.dropped), (LIMIT as u64, PAST as u64));
    // Not by a quiesce, which would wait for the one that stalls.
    while tally.count() < LIMIT + PAST + 1 {
        thread::yield_now();
    }
    assert!(tally.is_gapless());
    // Said once, on a clock that stands still; and what the logger published came through.
    assert_eq!(TOLD.load(Ordering::SeqCst), 1);
    assert_eq!(news.wait_for(1).len(), 1);
    // It still stalls, and the shutdown is bounded.
    let end = while_time_passes(&clock, || dispatcher.shutdown(Duration::from_secs(1)));
    // Time may have passed faster than the others could say that they are done.
    assert!(end.unwrap().abandoned_subscriptions >= 1);
    drop(go);
}

// case F29
#[test]
fn an_observer_may_panic_publish_subscribe_and_wait_for_the_publishers_lock() {
    const EVENTS: usize = 500;
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "bad").unwrap();
    let of_jobs = || EventFilter::all().workflow(workflow.id());
    let only = || of_jobs().app::<Numbered>();
    // The lock is the publisher's, and it publishes while it holds it.
    let lock = Arc::new(Mutex::new(0_usize));

    let _panicking = dispatcher
        .subscribe(only(), Arc::new(|_: &Arc<Event>| quiet_panic()))
        .unwrap();
    let waited = Arc::clone(&lock);
    let _waiting = dispatcher
        .subscribe(
            only(),
            Arc::new(move |_: &Arc<Event>| *waited.lock().unwrap() += 1),
        )
        .unwrap();
    let echo = dispatcher.bus().clone();
    let _publishing = dispatcher
        .subscribe(
            only(),
            Arc::new(move |_: &Arc<Event>| {
                echo.publish(Event::scheduler_error("echo", SystemTime::UNIX_EPOCH));
            }),
        )
        .unwrap();
    let (bus, late, subscribed) = (
        dispatcher.bus().clone(),
        EventRecorder::new(),
        AtomicBool::new(false),
    );
    let later = late.clone();
    let _subscribing = dispatcher
        .subscribe(
            only(),
            Arc::new(move |_: &Arc<Event>| {
                if !subscribed.swap(true, Ordering::SeqCst) {
                    let filter = EventFilter::all().kind(EventKind::SchedulerError);
                    bus.subscribe(filter, later.clone()).unwrap().detach();
                }
            }),
        )
        .unwrap();
    let sibling = EventRecorder::new();
    let _sibling = dispatcher.subscribe(of_jobs(), sibling.clone()).unwrap();

    let held = Arc::clone(&lock);
    let job = job_fn(JobRequirements::none, move |_, context: &JobContext| {
        let held = held.lock().map_err(|_| JobError::correctable("poisoned"))?;
        for n in 0..EVENTS {
            context.publish_event(Arc::new(Numbered { publisher: 0, n }));
        }
        drop(held);
        Ok(())
    });
    dispatcher.submit(&workflow, job).unwrap().get().unwrap();
    quiesce(&dispatcher);
    // Nobody was skipped, and nothing hung.
    assert_eq!(*lock.lock().unwrap(), EVENTS);
    let numbers: Vec<_> = sibling
        .events()
        .iter()
        .filter_map(|event| number_of(event).map(|number| number.n))
        .collect();
    assert_eq!(numbers, (0..EVENTS).collect::<Vec<_>>());
    dispatcher
        .bus()
        .publish(Event::scheduler_error("the end", SystemTime::UNIX_EPOCH));
    late.wait_until(|event| event.message().ends_with("the end"));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}
