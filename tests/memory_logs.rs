//! What the memory gate writes to the log. In a binary of its own: a process has one logger.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::{CountingGate, Demand};
use nucleo_runtime::events::MessageBus;
use nucleo_runtime::testing::{self, AdmissionBench, ScriptedMemory};
use nucleo_runtime::{Clock, ManualClock};

static LINES: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = (record.level(), record.args().to_string());
        LINES.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

/// The one line since the last time.
fn one(level: log::Level, facts: &[&str]) {
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0].0, level, "{lines:?}");
    for fact in facts {
        assert!(lines[0].1.contains(fact), "{fact} is missing: {lines:?}");
    }
}

fn none() {
    assert_eq!(*LINES.lock().unwrap(), []);
}

#[test]
fn the_latch_a_failing_source_and_a_standstill_are_logged_once_each() {
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let bus = MessageBus::standalone(Arc::clone(&shared));
    let memory = ScriptedMemory::new(100 << 20);
    let bench =
        AdmissionBench::with_memory(Arc::clone(&shared), &bus, memory.clone(), true).unwrap();
    let bench = Arc::new(bench);
    let gate = Arc::new(CountingGate::new("gate", 9).unwrap());
    let percent = |percent: u64| memory.set(percent << 20);
    let look = || {
        bench.wake();
        bench.quiesce();
    };

    percent(94);
    look();
    none();
    percent(96);
    look();
    one(log::Level::Warn, &["96.0 of 100.0 MiB", "critical"]);
    look();
    none();

    let context = testing::context(&shared, &bus, "user", None).unwrap();
    let waiting = {
        let bench = Arc::clone(&bench);
        let mut demand = Demand::new();
        demand.add(&gate, ());
        thread::spawn(move || bench.admission().admit(demand, &context))
    };
    while bench.admission().queue_len() == 0 {
        thread::yield_now();
    }
    bench.quiesce();
    clock.advance(Duration::from_secs(29));
    bench.quiesce();
    none();
    clock.advance(Duration::from_secs(1));
    let grant = waiting.join().unwrap().unwrap();
    bench.quiesce();
    one(log::Level::Error, &["script", "30 s", "96.0 of 100.0 MiB"]);

    memory.fail("gone");
    look();
    one(log::Level::Warn, &["script", "gone", "last reading stands"]);
    look();
    none();

    percent(80);
    look();
    one(log::Level::Info, &["80.0 of 100.0 MiB", "green"]);
    look();
    memory.fail("gone again");
    look();
    one(log::Level::Warn, &["gone again"]);

    // Every other reading fails: that is the same row.
    for _ in 0..1_000 {
        memory.set(10 << 20);
        look();
        memory.fail("now and then");
        look();
    }
    none();
    memory.set(10 << 20);
    for _ in 0..4 {
        look();
    }
    memory.fail("another time");
    look();
    one(log::Level::Warn, &["another time"]);
    drop(grant);
}
