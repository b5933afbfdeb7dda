//! A log that panics takes no permit, no waiter and no evaluator with it. In a binary of its own: a
//! process has one logger.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CircuitState, CountingGate, Demand, ElasticWindow,
    Grant, RateLimiter, Replenishment, TokenBucket, TokenBudget,
};
use nucleo_runtime::events::MessageBus;
use nucleo_runtime::testing::{self, AdmissionBench, ScriptedMemory};
use nucleo_runtime::{Clock, JobError, ManualClock, UpstreamFailure};

/// How many lines were lost in a panic: all of them are.
static LOST: AtomicUsize = AtomicUsize::new(0);

struct ClosedPipe;

impl log::Log for ClosedPipe {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOST.fetch_add(1, Ordering::SeqCst);
        panic!("the pipe is closed: {}", record.args());
    }

    fn flush(&self) {}
}

/// How many lines `act` wrote.
fn lines(act: impl FnOnce()) -> usize {
    let before = LOST.load(Ordering::SeqCst);
    act();
    LOST.load(Ordering::SeqCst) - before
}

/// An admission behind a memory gate, on a clock that stands still.
struct Line {
    clock: ManualClock,
    bus: MessageBus,
    memory: ScriptedMemory,
    bench: Arc<AdmissionBench>,
}

impl Line {
    fn new() -> Self {
        let clock = ManualClock::new();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let bus = MessageBus::standalone(Arc::clone(&shared));
        let memory = ScriptedMemory::new(100);
        let bench = AdmissionBench::with_memory(shared, &bus, memory.clone(), true).unwrap();
        bench.quiesce();
        Self {
            clock,
            bus,
            memory,
            bench: Arc::new(bench),
        }
    }

    fn admit(&self, demand: Demand) -> Result<Grant, JobError> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let context = testing::context(&clock, &self.bus, "user", None).unwrap();
        self.bench.admission().admit(demand, &context)
    }

    /// Asks on a thread of its own, which has parked when this returns.
    fn park(&self, demand: Demand) -> JoinHandle<Result<Grant, JobError>> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let context = testing::context(&clock, &self.bus, "user", None).unwrap();
        let bench = Arc::clone(&self.bench);
        let asking = thread::spawn(move || bench.admission().admit(demand, &context));
        while self.parked() == 0 {
            thread::yield_now();
        }
        self.bench.quiesce();
        asking
    }

    fn parked(&self) -> usize {
        self.bench.admission().queue_len()
    }
}

fn granted(asking: JoinHandle<Result<Grant, JobError>>) -> Grant {
    asking.join().unwrap().unwrap()
}

fn of<L: RateLimiter>(limiter: &Arc<L>, amount: L::Amount) -> Demand {
    let mut demand = Demand::new();
    demand.add(limiter, amount);
    demand
}

fn gate() -> Arc<CountingGate> {
    Arc::new(CountingGate::new("gate", 1).unwrap())
}

fn the_step_of_an_arrival_logs() {
    let line = Line::new();
    let gate = gate();
    line.memory.fail("gone");
    let grant = line.admit(of(&gate, ())).unwrap();
    assert_eq!(gate.in_use(), 1);
    line.memory.set(10);
    let next = line.park(of(&gate, ()));
    line.bench.wake();
    line.bench.quiesce();
    line.memory.fail("gone again");
    grant.release();
    drop(granted(next));
    assert_eq!((gate.in_use(), line.parked()), (0, 0));
}

fn a_look_of_the_evaluator_logs() {
    let line = Line::new();
    let gate = gate();
    let holder = line.admit(of(&gate, ())).unwrap();
    let waiting = line.park(of(&gate, ()));
    for percent in [96, 10] {
        line.memory.set(percent);
        line.bench.wake();
        line.bench.quiesce();
    }
    holder.release();
    drop(granted(waiting));
    assert_eq!((gate.in_use(), line.parked()), (0, 0));
}

/// Takes nothing back.
struct Keeper(AccountKey);

impl RateLimiter for Keeper {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.0.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {
        panic!("it is mine");
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

fn a_defect_is_logged() {
    let line = Line::new();
    let gate = gate();
    let held = line.admit(of(&gate, ())).unwrap();
    let waiting = line.park(of(&gate, ()));
    let kept = line.admit(of(&Arc::new(Keeper(AccountKey::new("keeper"))), ()));
    kept.unwrap().release();
    assert!(
        waiting
            .join()
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("keeper")
    );
    drop(held);
    assert_eq!(gate.in_use(), 0);
}

fn limits_log_what_they_hear() {
    let line = Line::new();
    let now = line.clock.now();
    let failure = UpstreamFailure::with_status(429, "service", "slow down");
    let bucket = Arc::new(TokenBucket::new("bucket", TokenBudget::new(100, 100), now).unwrap());
    let spent = line.admit(of(&bucket, 100)).unwrap();
    let waiting = line.park(of(&bucket, 100));
    bucket.on_rate_limit_error(&failure, now);
    bucket.set_config(TokenBudget::new(6_000, 100), now);
    line.bench.quiesce();
    // The evaluator has heard of the budget: it goes by the new rate.
    line.clock.advance(Duration::from_secs(30));
    drop((granted(waiting), spent));

    let window = ElasticWindow::builder("window", 1, Duration::from_secs(1))
        .max_throttle_tenths(0)
        .failures_to_block(1)
        .initial_cooldown(Duration::from_secs(1))
        .build()
        .unwrap();
    let window = Arc::new(window);
    window.on_rate_limit_error(&failure, line.clock.now());
    assert_eq!(
        window.status(line.clock.now()).circuit,
        CircuitState::Blocked
    );
    line.clock.advance(Duration::from_secs(1));
    drop(line.admit(of(&window, ())).unwrap());
    window.on_success(line.clock.now());
    assert_eq!(
        window.status(line.clock.now()).circuit,
        CircuitState::Healthy
    );
}

#[test]
fn whatever_is_logged_everyone_is_answered_and_every_permit_comes_back() {
    log::set_logger(&ClosedPipe).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    assert!(lines(the_step_of_an_arrival_logs) >= 2);
    assert_eq!(lines(a_look_of_the_evaluator_logs), 2);
    assert_eq!(lines(a_defect_is_logged), 1);
    assert_eq!(lines(limits_log_what_they_hear), 4);
}
