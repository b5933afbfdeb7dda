//! The bus with jobs' events, and where the outside cannot look.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::bus::MessageBus;
use super::event::Event;
use super::filter::EventFilter;
use super::kind::{EventFamily, EventKind};
use super::operation::{CancelHeartbeat, LimiterChange};
use super::progress::WorkflowComplete;
use super::sample::{self, ChatMessage, Payment, at, sample_snapshot};
use super::subscription::{SubscribeError, Subscription};
use crate::clock::ManualClock;
use crate::sync::Mutex;
use crate::threads::{DEFAULT_STACK, Threads};

fn bus() -> MessageBus {
    let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
    bus.start();
    bus
}

/// What a subscription has heard.
struct Ear {
    heard: Arc<Mutex<Vec<EventKind>>>,
    _subscription: Subscription,
}

impl Ear {
    fn on(bus: &MessageBus, filter: EventFilter) -> Self {
        let heard = Arc::<Mutex<Vec<_>>>::default();
        let log = Arc::clone(&heard);
        let observer = move |event: &Arc<Event>| log.lock().push(event.kind());
        Self {
            _subscription: bus.subscribe(filter, Arc::new(observer)).unwrap(),
            heard,
        }
    }

    fn heard(&self) -> Vec<EventKind> {
        self.heard.lock().clone()
    }
}

// case BUS-02
#[test]
fn a_subscription_to_a_workflow_hears_of_that_workflow_alone() {
    let bus = bus();
    let ear = Ear::on(&bus, EventFilter::all().workflow("w-1"));
    bus.publish(sample::started(&sample_snapshot("A", "w-1"), 1));
    bus.publish(sample::started(&sample_snapshot("A", "w-2"), 1));
    bus.publish(sample::cancelled(&sample_snapshot("B", "w-1"), false));
    bus.flush();
    assert_eq!(
        ear.heard(),
        [EventKind::JobStarted, EventKind::JobCancelled]
    );
}

// case BUS-14
#[test]
fn an_event_about_no_job_reaches_only_those_who_name_neither_job_type_nor_workflow() {
    let bus = bus();
    let all = EventFilter::all;
    let global = Ear::on(&bus, all());
    let heartbeats = Ear::on(&bus, all().family(EventFamily::Heartbeat));
    let typed = Ear::on(&bus, all().family(EventFamily::Heartbeat).job_type("Other"));
    let scoped = Ear::on(&bus, all().family(EventFamily::Heartbeat).workflow("w-1"));
    let job_type = Ear::on(&bus, all().job_type("Other"));
    let workflow = Ear::on(&bus, all().workflow("w-1"));
    bus.publish(Event::scheduler_error("x", at()));
    bus.publish(
        CancelHeartbeat {
            id: "hourly".into(),
            at: at(),
        }
        .into(),
    );
    bus.publish(sample::limiter(LimiterChange::Released, None).into());
    bus.publish(sample::started(&sample_snapshot("Lookup", "w-1"), 1));
    bus.flush();
    let counts =
        [&global, &heartbeats, &typed, &scoped, &job_type, &workflow].map(|ear| ear.heard().len());
    assert_eq!(counts, [4, 1, 0, 0, 0, 1]);
}

// case BUS-15
// case BUS-16
#[test]
fn a_family_hears_of_its_own_and_an_application_event_is_in_none_of_them() {
    let bus = bus();
    let all = EventFilter::all;
    let lifecycle = Ear::on(&bus, all().family(EventFamily::Lifecycle));
    let progress = Ear::on(&bus, all().family(EventFamily::Progress));
    let chat = Ear::on(&bus, all().app::<ChatMessage>());
    let payment = Ear::on(&bus, all().app::<Payment>());
    let global = Ear::on(&bus, all());
    let job = sample_snapshot("Lookup", "w-1");
    for event in [
        sample::scheduled(&job),
        sample::started(&job, 1),
        sample::progress(&job, None, Some(10)),
        WorkflowComplete::succeeded(job.clone(), at()).into(),
        sample::idle(&job),
        sample::completed(&job, None),
        sample::app(ChatMessage, Some(job.clone())),
    ] {
        bus.publish(event);
    }
    bus.flush();
    assert_eq!(
        lifecycle.heard(),
        [
            EventKind::JobScheduled,
            EventKind::JobStarted,
            EventKind::OrchestratorIdle,
            EventKind::JobCompleted
        ]
    );
    assert_eq!(progress.heard(), [EventKind::JobProgress]);
    assert_eq!(chat.heard(), [EventKind::App]);
    assert_eq!(payment.heard(), []);
    assert_eq!(global.heard().len(), 7);
}

#[test]
fn an_event_is_made_only_if_somebody_wants_it() {
    let bus = bus();
    let job = sample_snapshot("Lookup", "w-1");
    let publish = |expected: bool| {
        let mut made = false;
        bus.publish_with(EventKind::JobStarted, Some(&job.profile), || {
            made = true;
            sample::started(&job, 1)
        })
        .log();
        assert_eq!(made, expected);
        assert_eq!(
            bus.wants(EventKind::JobStarted, Some(&job.profile)),
            expected
        );
    };
    publish(false);
    let _other_kind = Ear::on(&bus, EventFilter::all().kind(EventKind::JobFailed));
    let _other_flow = Ear::on(&bus, EventFilter::all().workflow("w-2"));
    publish(false);
    let ear = Ear::on(&bus, EventFilter::all().kind(EventKind::JobStarted));
    publish(true);
    bus.flush();
    assert_eq!(ear.heard(), [EventKind::JobStarted]);
    drop(ear);
    publish(false);
}

/// An observer that says when it begins an event and waits to be let on.
fn gated() -> (
    impl Fn(&Arc<Event>) + Send + Sync + 'static,
    Receiver<String>,
    Sender<()>,
) {
    let (begun, begins) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let observer = move |event: &Arc<Event>| {
        let _ = begun.send(event.message());
        let _ = gate.lock().recv();
    };
    (observer, begins, go)
}

#[test]
fn one_past_the_limit_is_dropped_and_counted() {
    let threads = Threads::new(8, DEFAULT_STACK);
    let bus = MessageBus::with_queue_limit(Arc::new(ManualClock::new()), threads, 3);
    bus.start();
    let (observer, begins, go) = gated();
    let subscription = bus
        .subscribe(EventFilter::all(), Arc::new(observer))
        .unwrap();
    let publish = |text: &str| bus.publish(Event::scheduler_error(text, at()));
    publish("0");
    // In the observer's hands, so it waits no more.
    assert_eq!(begins.recv().unwrap(), "Scheduler error: 0");
    for text in ["1", "2", "3", "4", "5"] {
        publish(text);
    }
    let status = bus.subscriptions()[0];
    assert_eq!(status.id, subscription.id());
    assert_eq!((status.waiting, status.dropped), (3, 2));
    go.send(()).unwrap();
    assert_eq!(begins.recv().unwrap(), "Scheduler error: 1");
    publish("6");
    assert_eq!(bus.subscriptions()[0].dropped, 2);
    drop(go);
    bus.flush();
    let heard: Vec<_> = begins.try_iter().collect();
    assert_eq!(
        heard,
        ["2", "3", "6"].map(|n| format!("Scheduler error: {n}"))
    );
}

#[test]
fn a_subscription_without_a_thread_to_be_had_is_refused() {
    // One subscription, and one thread that is left to jobs.
    let threads = Threads::new(2, DEFAULT_STACK);
    let bus = MessageBus::new(Arc::new(ManualClock::new()), Arc::clone(&threads));
    bus.start();
    let _first = Ear::on(&bus, EventFilter::all());
    let refused = bus.subscribe(EventFilter::all(), Arc::new(|_: &Arc<Event>| {}));
    assert!(matches!(refused, Err(SubscribeError::NoThread { cap: 2 })));
    assert_eq!(bus.subscriptions().len(), 1);
}

#[test]
fn a_sweep_that_nobody_waits_for_is_asked_for_once() {
    struct Stale(Sender<()>);
    impl super::Observer for Stale {
        fn observe(&self, _: &Arc<Event>) {}
        fn is_stale(&self) -> bool {
            let _ = self.0.send(());
            true
        }
    }
    let bus = bus();
    let (asked, questions) = mpsc::channel();
    bus.subscribe(EventFilter::all(), Arc::new(Stale(asked)))
        .unwrap()
        .detach();
    bus.request_stale_sweep();
    bus.flush();
    assert!(bus.subscriptions().is_empty());
    // The observer is gone, and with it the sender.
    assert_eq!(questions.iter().count(), 1);
}

#[test]
fn a_bus_that_nobody_holds_delivers_what_it_has_and_ends_its_threads() {
    let bus = bus();
    let (observer, begins, go) = gated();
    bus.subscribe(EventFilter::all(), Arc::new(observer))
        .unwrap()
        .detach();
    bus.publish(Event::scheduler_error("1", at()));
    bus.publish(Event::scheduler_error("2", at()));
    drop(bus);
    drop(go);
    // Ends when the observer is dropped, with its thread.
    assert_eq!(begins.iter().count(), 2);
}

#[test]
fn a_flush_returns_after_what_its_caller_published_however_many_flush_at_once() {
    let bus = bus();
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&heard);
    let observer = move |event: &Arc<Event>| log.lock().push(event.message());
    let _subscription = bus
        .subscribe(EventFilter::all(), Arc::new(observer))
        .unwrap();
    std::thread::scope(|scope| {
        for publisher in 0..4 {
            let (bus, heard) = (&bus, &heard);
            scope.spawn(move || {
                for n in 0..500 {
                    bus.publish(Event::scheduler_error(format!("{publisher}:{n}"), at()));
                    bus.flush();
                    let last = format!("Scheduler error: {publisher}:{n}");
                    assert!(heard.lock().iter().rev().any(|line| *line == last));
                }
            });
        }
    });
}
