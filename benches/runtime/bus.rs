//! B5: what publishing costs per subscriber, while all of them keep up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use nucleo_runtime::SystemClock;
use nucleo_runtime::events::{Event, EventFilter, MessageBus};

use crate::Effort;
use crate::report::{Row, median};

pub(crate) fn publishing(effort: Effort, report: &mut dyn FnMut(Row)) {
    for subscribers in [1, 8, 64] {
        let events = effort.pick(1_000_000, 200_000) / subscribers.max(4);
        let mut floors = Vec::new();
        let mut values = Vec::new();
        for round in 0..=effort.pick(15, 7) {
            let floor = bare(subscribers, events);
            let value = bus(subscribers, events);
            if round > 0 {
                floors.push(floor);
                values.push(value);
            }
        }
        report(Row::against(
            format!("B5.{subscribers}"),
            format!("publish, per subscriber of {subscribers}, by the bare channel"),
            "ns",
            median(values),
            median(floors),
            1.3,
        ));
    }
}

fn event() -> Event {
    Event::scheduler_error("bench", SystemTime::UNIX_EPOCH)
}

/// Nanoseconds a message and subscriber that the sender spends, while the receivers take what they
/// can. All of it is heard in the end.
fn bare(subscribers: usize, events: usize) -> f64 {
    let heard = Arc::new(AtomicUsize::new(0));
    let (senders, threads): (Vec<_>, Vec<_>) = (0..subscribers)
        .map(|_| {
            let (sender, receiver) = crossbeam::channel::unbounded::<Arc<Event>>();
            let heard = Arc::clone(&heard);
            let thread = thread::spawn(move || {
                let mut count = 0;
                for message in receiver {
                    drop(message);
                    count += 1;
                }
                heard.fetch_add(count, Ordering::SeqCst);
            });
            (sender, thread)
        })
        .unzip();
    let message = event();
    let began = Instant::now();
    for _ in 0..events {
        let message = Arc::new(message.clone());
        for sender in &senders {
            sender.send(Arc::clone(&message)).unwrap();
        }
    }
    let took = began.elapsed();
    drop(senders);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(heard.load(Ordering::SeqCst), events * subscribers);
    took.as_secs_f64() * 1e9 / (events * subscribers) as f64
}

/// As many as an observer heard, in a cache line of its own: the receivers of the bare channel count
/// each for itself as well.
#[derive(Default)]
#[repr(align(128))]
struct Heard(AtomicUsize);

impl Heard {
    /// Called by one thread.
    fn count(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + 1, Ordering::Relaxed);
    }
}

fn bus(subscribers: usize, events: usize) -> f64 {
    let bus = MessageBus::standalone(Arc::new(SystemClock));
    bus.start();
    let (heard, subscriptions): (Vec<_>, Vec<_>) = (0..subscribers)
        .map(|_| {
            let heard = Arc::new(Heard::default());
            let counted = Arc::clone(&heard);
            let observer = move |_: &Arc<Event>| counted.count();
            let subscription = bus.subscribe(EventFilter::all(), Arc::new(observer));
            (heard, subscription.unwrap())
        })
        .unzip();
    let message = event();
    let began = Instant::now();
    for _ in 0..events {
        bus.publish(message.clone());
    }
    let took = began.elapsed();
    // Ends when every queue is empty.
    bus.stop().unwrap();
    let all: usize = heard.iter().map(|each| each.0.load(Ordering::SeqCst)).sum();
    assert_eq!(all, events * subscribers);
    drop(subscriptions);
    took.as_secs_f64() * 1e9 / (events * subscribers) as f64
}
