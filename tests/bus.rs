//! The bus as programs see it (`BUS`), alone and without a dispatcher.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nucleo_runtime::events::{
    AppEvent, BusError, Event, EventFamily, EventFilter, MessageBus, Observer, ObserverKey,
    SubscribeError, Subscription, SubscriptionId,
};
use nucleo_runtime::{Clock, ManualClock, WaitCell};

fn running_bus() -> MessageBus {
    let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
    bus.start();
    bus
}

fn event(text: &str) -> Event {
    Event::scheduler_error(text, SystemTime::UNIX_EPOCH)
}

fn text_of(event: &Event) -> String {
    let line = event.message();
    line.strip_prefix("Scheduler error: ")
        .map_or(line.clone(), str::to_owned)
}

/// An observer that passes on what it hears, and the other end.
fn recorder() -> (
    impl Fn(&Arc<Event>) + Send + Sync + 'static,
    Receiver<String>,
) {
    let (sender, heard) = mpsc::channel();
    let observer = move |event: &Arc<Event>| {
        let _ = sender.send(text_of(event));
    };
    (observer, heard)
}

/// An observer that says when it begins an event, then waits to be let on. Once the sender is
/// gone it waits no more.
fn gated() -> (
    impl Fn(&Arc<Event>) + Send + Sync + 'static,
    Receiver<String>,
    Sender<()>,
) {
    let (begun, begins) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let observer = move |event: &Arc<Event>| {
        let _ = begun.send(text_of(event));
        let _ = gate.lock().unwrap().recv();
    };
    (observer, begins, go)
}

fn subscribe(bus: &MessageBus, observer: impl Observer) -> Subscription {
    bus.subscribe(EventFilter::all(), Arc::new(observer))
        .unwrap()
}

/// A manual clock that tells of every wait with a deadline before it begins.
#[derive(Debug)]
struct WatchedClock {
    time: ManualClock,
    waits: Sender<Instant>,
}

impl WatchedClock {
    fn new() -> (Arc<Self>, Receiver<Instant>) {
        let (waits, deadlines) = mpsc::channel();
        let time = ManualClock::new();
        (Arc::new(Self { time, waits }), deadlines)
    }
}

impl Clock for WatchedClock {
    fn now(&self) -> Instant {
        self.time.now()
    }

    fn wall(&self) -> SystemTime {
        self.time.wall()
    }

    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            let _ = self.waits.send(deadline);
        }
        self.time.wait_until(cell, seen, deadline);
    }
}

// case BUS-01
#[test]
fn a_slow_observer_delays_itself_alone() {
    let bus = running_bus();
    let (slow, begins, go) = gated();
    let (fast, heard) = recorder();
    let _slow = subscribe(&bus, slow);
    let _fast = subscribe(&bus, fast);
    let texts: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    for text in &texts {
        bus.publish(event(text));
    }
    let fast: Vec<_> = heard.iter().take(20).collect();
    assert_eq!(fast, texts);
    // The slow one holds its first and can have begun no other.
    assert_eq!(begins.recv().unwrap(), "0");
    assert!(begins.try_recv().is_err());
    drop(go);
    let rest: Vec<_> = begins.iter().take(19).collect();
    assert_eq!(rest, texts[1..]);
}

// case BUS-04
#[test]
fn the_same_observer_twice_is_one_subscription() {
    struct Keyed(&'static str, Sender<&'static str>);
    impl Observer for Keyed {
        fn observe(&self, _: &Arc<Event>) {
            self.1.send(self.0).unwrap();
        }
        fn key(&self) -> Option<ObserverKey> {
            Some(ObserverKey::new("ledger"))
        }
    }

    let bus = running_bus();
    let (observer, heard) = recorder();
    let observer: Arc<dyn Observer> = Arc::new(observer);
    let first = bus
        .subscribe(EventFilter::all(), Arc::clone(&observer))
        .unwrap();
    let second = bus.subscribe(EventFilter::all(), observer).unwrap();
    assert!(!first.is_noop());
    assert!(second.is_noop());
    assert_eq!(second.id(), SubscriptionId::NOOP);
    assert_eq!(second.id().to_string(), "noop");
    // The end of the second is not the end of the first.
    drop(second);

    let (sender, names) = mpsc::channel();
    let _one = subscribe(&bus, Keyed("one", sender.clone()));
    assert!(subscribe(&bus, Keyed("other", sender)).is_noop());

    bus.publish(event("x"));
    bus.stop().unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["x"]);
    assert_eq!(names.try_iter().collect::<Vec<_>>(), ["one"]);
}

#[test]
fn an_observer_that_left_may_come_back() {
    let bus = running_bus();
    let (observer, heard) = recorder();
    let observer: Arc<dyn Observer> = Arc::new(observer);
    let filter = EventFilter::all;
    bus.subscribe(filter(), Arc::clone(&observer))
        .unwrap()
        .unsubscribe();
    bus.publish(event("missed"));
    let again = bus.subscribe(filter(), observer).unwrap();
    assert!(!again.is_noop());
    bus.publish(event("heard"));
    bus.stop().unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["heard"]);
}

// case BUS-05
#[test]
fn what_is_published_before_the_start_or_after_the_stop_is_dropped() {
    let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
    let (observer, heard) = recorder();
    let _subscription = subscribe(&bus, observer);
    bus.publish(event("early"));
    assert!(!bus.is_running());
    bus.start();
    bus.start();
    assert!(bus.is_running());
    bus.publish(event("in time"));
    bus.stop().unwrap();
    assert!(!bus.is_running());
    bus.publish(event("late"));
    bus.start();
    assert!(!bus.is_running());
    bus.publish(event("later"));
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["in time"]);
}

// case BUS-06
#[test]
fn stop_returns_when_everything_published_before_has_been_delivered() {
    let (clock, deadlines) = WatchedClock::new();
    let bus = MessageBus::standalone(clock);
    bus.start();
    let (observer, begins, go) = gated();
    let _subscription = subscribe(&bus, observer);
    for n in 0..10 {
        bus.publish(event(&n.to_string()));
    }
    let stopping = {
        let bus = bus.clone();
        thread::spawn(move || bus.stop().unwrap())
    };
    deadlines.recv().unwrap();
    assert_eq!(bus.subscriptions(), []);
    for _ in 0..10 {
        assert!(!stopping.is_finished());
        begins.recv().unwrap();
        go.send(()).unwrap();
    }
    let report = stopping.join().unwrap();
    assert_eq!((report.abandoned, report.undelivered), (0, 0));
    assert!(begins.try_recv().is_err());
}

// case BUS-07
#[test]
fn a_consumer_that_cannot_drain_in_five_seconds_is_abandoned() {
    let (clock, deadlines) = WatchedClock::new();
    let bus = MessageBus::standalone(Arc::clone(&clock) as Arc<dyn Clock>);
    bus.start();
    let (stuck, begins, go) = gated();
    let (well, heard) = recorder();
    let _stuck = subscribe(&bus, stuck);
    let _well = subscribe(&bus, well);
    for text in ["in hand", "lost 1", "lost 2"] {
        bus.publish(event(text));
    }
    assert_eq!(begins.recv().unwrap(), "in hand");
    let begun = clock.now();
    let stopping = {
        let bus = bus.clone();
        thread::spawn(move || bus.stop().unwrap())
    };
    assert_eq!(deadlines.recv().unwrap(), begun + Duration::from_secs(5));
    // The other one is done, down to its observer.
    assert_eq!(heard.iter().count(), 3);
    clock.time.advance(Duration::from_secs(5));
    let report = stopping.join().unwrap();
    assert_eq!((report.abandoned, report.undelivered), (1, 2));
    // What waited stays dropped when the observer comes back after all; then its thread ends.
    drop(go);
    assert_eq!(begins.iter().count(), 0);
}

// case BUS-09
#[test]
fn a_bus_stops_once_and_only_after_it_started_and_takes_nobody_afterwards() {
    let bus = MessageBus::standalone(Arc::new(ManualClock::new()));
    assert_eq!(bus.stop(), Err(BusError::NotStarted));
    bus.start();
    bus.stop().unwrap();
    assert_eq!(bus.stop(), Err(BusError::AlreadyStopped));
    let refused = bus.subscribe(EventFilter::all(), Arc::new(|_: &Arc<Event>| {}));
    assert!(matches!(refused, Err(SubscribeError::Stopped)));
}

#[test]
fn nobody_joins_while_the_bus_stops() {
    let (clock, deadlines) = WatchedClock::new();
    let bus = MessageBus::standalone(clock);
    bus.start();
    let (observer, begins, go) = gated();
    let _subscription = subscribe(&bus, observer);
    bus.publish(event("x"));
    begins.recv().unwrap();
    let stopping = {
        let bus = bus.clone();
        thread::spawn(move || bus.stop())
    };
    deadlines.recv().unwrap();
    let refused = bus.subscribe(EventFilter::all(), Arc::new(|_: &Arc<Event>| {}));
    assert!(matches!(refused, Err(SubscribeError::Stopped)));
    assert_eq!(bus.stop(), Err(BusError::AlreadyStopped));
    drop(go);
    assert!(stopping.join().unwrap().is_ok());
}

// case BUS-10
#[test]
fn an_observer_that_panics_goes_on_receiving() {
    let bus = running_bus();
    let (sender, heard) = mpsc::channel();
    let observer = move |event: &Arc<Event>| {
        let text = text_of(event);
        assert_ne!(text, "bad");
        sender.send(text).unwrap();
    };
    let _subscription = subscribe(&bus, observer);
    bus.publish(event("bad"));
    bus.publish(event("good"));
    assert_eq!(heard.recv().unwrap(), "good");
}

#[test]
fn a_predicate_that_panics_rejects_that_event() {
    struct Picky(Sender<String>);
    impl Observer for Picky {
        fn observe(&self, event: &Arc<Event>) {
            self.0.send(text_of(event)).unwrap();
        }
        fn accepts(&self, event: &Event) -> bool {
            assert_ne!(text_of(event), "bad");
            text_of(event) != "unwanted"
        }
    }
    let bus = running_bus();
    let (sender, heard) = mpsc::channel();
    let _subscription = subscribe(&bus, Picky(sender));
    for text in ["bad", "unwanted", "good"] {
        bus.publish(event(text));
    }
    bus.stop().unwrap();
    assert_eq!(heard.iter().collect::<Vec<_>>(), ["good"]);
}

/// A payload, or a panic, that panics as it is dropped.
#[derive(Debug)]
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

impl AppEvent for Bomb {
    fn name(&self) -> &str {
        "bomb"
    }
}

#[test]
fn a_payload_that_panics_as_it_is_dropped_takes_nobody_down() {
    let bus = running_bus();
    let bomb = || Event::app(Arc::new(Bomb), SystemTime::UNIX_EPOCH);
    bus.publish(bomb()); // Nobody wants it, so the publisher drops it.
    let (observer, heard) = recorder();
    let _subscription = subscribe(&bus, observer);
    bus.publish(bomb());
    bus.publish(event("after"));
    assert_eq!(heard.recv().unwrap(), "bomb");
    assert_eq!(heard.recv().unwrap(), "after");
}

#[test]
fn a_panic_whose_payload_panics_as_it_is_dropped_is_contained_too() {
    let bus = running_bus();
    let (sender, heard) = mpsc::channel();
    let observer = move |event: &Arc<Event>| match text_of(event).as_str() {
        "bad" => std::panic::panic_any(Bomb),
        text => sender.send(text.to_owned()).unwrap(),
    };
    let _subscription = subscribe(&bus, observer);
    bus.publish(event("bad"));
    bus.publish(event("good"));
    assert_eq!(heard.recv().unwrap(), "good");
}

struct Ageing {
    stale: Arc<AtomicBool>,
    heard: Sender<String>,
}

impl Observer for Ageing {
    fn observe(&self, event: &Arc<Event>) {
        self.heard.send(text_of(event)).unwrap();
    }

    fn is_stale(&self) -> bool {
        self.stale.load(Ordering::SeqCst)
    }
}

// case BUS-11
#[test]
fn a_stale_observer_is_removed_by_a_cleanup() {
    let bus = running_bus();
    let ageing = |stale: bool| {
        let (heard, ear) = mpsc::channel();
        let stale = Arc::new(AtomicBool::new(stale));
        (Ageing { stale, heard }, ear)
    };
    let ((stale, stale_ear), (fresh, fresh_ear)) = (ageing(true), ageing(false));
    let _stale = subscribe(&bus, stale);
    let _fresh = subscribe(&bus, fresh);
    bus.publish(event("before"));
    assert_eq!(bus.cleanup_stale_subscriptions(), 1);
    bus.publish(event("after"));
    assert_eq!(bus.cleanup_stale_subscriptions(), 0);
    bus.stop().unwrap();
    assert_eq!(stale_ear.iter().collect::<Vec<_>>(), ["before"]);
    assert_eq!(fresh_ear.iter().collect::<Vec<_>>(), ["before", "after"]);
}

#[test]
fn a_cleanup_waits_five_seconds_and_a_late_answer_still_counts_for_itself() {
    struct Late(Mutex<Receiver<()>>, Sender<()>);
    impl Observer for Late {
        fn observe(&self, _: &Arc<Event>) {}
        fn is_stale(&self) -> bool {
            self.1.send(()).unwrap();
            let _ = self.0.lock().unwrap().recv();
            true
        }
    }
    let (clock, deadlines) = WatchedClock::new();
    let bus = MessageBus::standalone(Arc::clone(&clock) as Arc<dyn Clock>);
    bus.start();
    let ((go, gate), (asked, questions)) = (mpsc::channel(), mpsc::channel());
    let _late = subscribe(&bus, Late(Mutex::new(gate), asked));
    let begun = clock.now();
    let cleaning = {
        let bus = bus.clone();
        thread::spawn(move || bus.cleanup_stale_subscriptions())
    };
    questions.recv().unwrap();
    assert_eq!(deadlines.recv().unwrap(), begun + Duration::from_secs(5));
    clock.time.advance(Duration::from_secs(5));
    assert_eq!(cleaning.join().unwrap(), 0);
    assert_eq!(bus.subscriptions().len(), 1);
    go.send(()).unwrap();
    // Its thread ends, and drops it.
    assert_eq!(questions.iter().count(), 0);
    assert_eq!(bus.subscriptions(), []);
}

#[test]
fn a_staleness_check_that_panics_removes_nobody() {
    struct Broken;
    impl Observer for Broken {
        fn observe(&self, _: &Arc<Event>) {}
        fn is_stale(&self) -> bool {
            panic!("no idea");
        }
    }
    let bus = running_bus();
    let _subscription = subscribe(&bus, Broken);
    assert_eq!(bus.cleanup_stale_subscriptions(), 0);
    assert_eq!(bus.subscriptions().len(), 1);
}

// case BUS-12
#[test]
fn a_plain_function_is_an_observer_that_accepts_everything_and_is_never_stale() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn plain(_: &Arc<Event>) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let observer: Arc<dyn Observer> = Arc::new(plain);
    assert!(observer.accepts(&event("x")));
    assert!(!observer.is_stale());
    assert!(observer.key().is_none());
    let bus = running_bus();
    let filter = EventFilter::all().family(EventFamily::Scheduler);
    let _subscription = bus.subscribe(filter, observer).unwrap();
    bus.publish(event("x"));
    bus.publish(event("y"));
    bus.stop().unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), 2);
}

#[test]
fn what_was_enqueued_before_the_unsubscribe_is_delivered_and_nothing_more() {
    let bus = running_bus();
    let (observer, begins, go) = gated();
    let subscription = subscribe(&bus, observer);
    for text in ["1", "2", "3"] {
        bus.publish(event(text));
    }
    // The observer is busy with the first; to unsubscribe does not wait for it.
    assert_eq!(begins.recv().unwrap(), "1");
    subscription.unsubscribe();
    bus.publish(event("4"));
    drop(go);
    assert_eq!(begins.iter().collect::<Vec<_>>(), ["2", "3"]);
}

#[test]
fn a_detached_subscription_goes_on() {
    let bus = running_bus();
    let (observer, heard) = recorder();
    subscribe(&bus, observer).detach();
    bus.publish(event("x"));
    assert_eq!(heard.recv().unwrap(), "x");
}

#[test]
fn an_observer_may_end_its_own_subscription() {
    let bus = running_bus();
    let (own, holds) = mpsc::channel::<Subscription>();
    let holds = Mutex::new(holds);
    let (sender, heard) = mpsc::channel();
    let observer = move |event: &Arc<Event>| {
        if text_of(event) == "go" {
            drop(holds.lock().unwrap().recv().unwrap());
        }
        sender.send(text_of(event)).unwrap();
    };
    own.send(subscribe(&bus, observer)).unwrap();
    bus.publish(event("go"));
    assert_eq!(heard.recv().unwrap(), "go");
    bus.publish(event("later"));
    // Ends with the observer, and so with its thread.
    assert_eq!(heard.iter().count(), 0);
    assert_eq!(bus.subscriptions(), []);
}

#[test]
fn an_observer_may_publish_and_subscribe() {
    let bus = running_bus();
    let (inner, heard) = recorder();
    let inner: Arc<dyn Observer> = Arc::new(inner);
    let observer = {
        let bus = bus.clone();
        move |observed: &Arc<Event>| {
            if text_of(observed) == "question" {
                bus.subscribe(EventFilter::all(), Arc::clone(&inner))
                    .unwrap()
                    .detach();
                bus.publish(event("answer"));
            }
        }
    };
    let _subscription = subscribe(&bus, observer);
    bus.publish(event("question"));
    assert_eq!(heard.recv().unwrap(), "answer");
    bus.stop().unwrap();
}

#[test]
fn an_observer_may_stop_the_bus_and_clean_up_and_does_not_wait_for_itself() {
    let bus = running_bus();
    let (sender, outcome) = mpsc::channel();
    let held = Arc::new(OnceLock::<MessageBus>::new());
    let observer = {
        let held = Arc::clone(&held);
        move |event: &Arc<Event>| {
            let bus = held.get().unwrap();
            // The clock stands still: to wait for itself would be to wait for ever.
            let answer = match text_of(event).as_str() {
                "clean" => bus.cleanup_stale_subscriptions() == 0,
                "stop" => bus.stop().is_ok(),
                _ => true,
            };
            sender.send(answer).unwrap();
        }
    };
    held.set(bus.clone()).unwrap();
    let _subscription = subscribe(&bus, observer);
    for text in ["clean", "stop", "backlog"] {
        bus.publish(event(text));
    }
    let answers: Vec<_> = outcome.iter().take(2).collect();
    assert_eq!(answers, [true, true]);
    // "backlog" comes if it was published before the stop was asked for.
    assert!(outcome.iter().all(|answer| answer));
}

#[test]
fn every_subscriber_hears_each_publisher_in_order_and_misses_nothing() {
    const EACH: usize = 2_000;
    let bus = running_bus();
    let ears: Vec<_> = (0..3)
        .map(|_| {
            let (observer, heard) = recorder();
            (subscribe(&bus, observer), heard)
        })
        .collect();
    thread::scope(|scope| {
        for publisher in 0..4 {
            let bus = &bus;
            scope.spawn(move || {
                for n in 0..EACH {
                    bus.publish(event(&format!("{publisher}:{n}")));
                }
            });
        }
    });
    let report = bus.stop().unwrap();
    assert_eq!(report.abandoned, 0);
    for (_, heard) in &ears {
        let mut next = [0; 4];
        for text in heard.iter() {
            let (publisher, n) = text.split_once(':').unwrap();
            let publisher: usize = publisher.parse().unwrap();
            assert_eq!(n.parse::<usize>().unwrap(), next[publisher]);
            next[publisher] += 1;
        }
        assert_eq!(next, [EACH; 4]);
    }
}
