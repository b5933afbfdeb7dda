//! A line of demands on a clock that the test owns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, Demand, Grant, RateLimiter, Replenishment,
};
use nucleo_runtime::events::MessageBus;
use nucleo_runtime::testing::{self, AdmissionBench};
use nucleo_runtime::{Clock, JobContext, JobError, ManualClock};

/// A level of whole units that the clock refills at a steady rate.
#[derive(Debug)]
pub(crate) struct Meter {
    key: AccountKey,
    capacity: u64,
    per_second: u64,
    /// In billionths of a unit, so that what comes in a nanosecond is a whole number of them.
    state: Mutex<(u64, Instant)>,
    pub(crate) takes: AtomicUsize,
    pub(crate) gives: AtomicUsize,
}

impl Meter {
    pub(crate) fn full(name: &str, capacity: u64, per_second: u64, now: Instant) -> Arc<Self> {
        Self::at(name, capacity, capacity, per_second, now)
    }

    pub(crate) fn drained(name: &str, capacity: u64, per_second: u64, now: Instant) -> Arc<Self> {
        Self::at(name, capacity, 0, per_second, now)
    }

    pub(crate) fn at(
        name: &str,
        capacity: u64,
        level: u64,
        per_second: u64,
        now: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new(name),
            capacity,
            per_second,
            state: Mutex::new((level * BILLION, now)),
            takes: AtomicUsize::new(0),
            gives: AtomicUsize::new(0),
        })
    }

    pub(crate) fn level(&self, now: Instant) -> u64 {
        self.billionths(now) / BILLION
    }

    fn billionths(&self, now: Instant) -> u64 {
        let (level, since) = *self.state.lock().unwrap();
        let elapsed = now.duration_since(since).as_nanos() as u64;
        let refilled = elapsed.saturating_mul(self.per_second);
        level.saturating_add(refilled).min(self.capacity * BILLION)
    }

    fn settle(&self, billionths: u64, now: Instant) {
        let level = billionths.min(self.capacity * BILLION);
        *self.state.lock().unwrap() = (level, now);
    }

    /// Adds to the level from outside, as a provider's refund does.
    pub(crate) fn add(&self, amount: u64, now: Instant) {
        self.settle(self.billionths(now) + amount * BILLION, now);
        self.key.capacity_grew();
    }
}

const BILLION: u64 = 1_000_000_000;

fn sum(amounts: &[u64]) -> u64 {
    amounts.iter().sum()
}

impl RateLimiter for Meter {
    type Amount = u64;

    fn account_for(&self, _: &u64) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::TokenBucket, self.capacity, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, mine: &[u64], ahead: &[u64], now: Instant) -> Result<bool, JobError> {
        if sum(mine) > self.capacity {
            return Err(JobError::uncorrectable(format!(
                "{} exceeds {}",
                sum(mine),
                self.capacity
            )));
        }
        Ok(self.level(now) >= sum(mine) + sum(ahead))
    }

    fn try_take(&self, mine: &[u64], ahead: &[u64], now: Instant) -> Result<bool, JobError> {
        let fits = self.fits(mine, ahead, now)?;
        if fits {
            self.settle(self.billionths(now) - sum(mine) * BILLION, now);
            self.takes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(fits)
    }

    fn give(&self, amounts: &[u64], now: Instant) {
        self.settle(self.billionths(now) + sum(amounts) * BILLION, now);
        self.gives.fetch_add(1, Ordering::SeqCst);
    }

    fn earliest_fit(&self, mine: &[u64], ahead: &[u64], now: Instant) -> Option<Instant> {
        let needed = sum(mine) + sum(ahead);
        if needed > self.capacity || self.per_second == 0 {
            return None;
        }
        let short = (needed * BILLION).saturating_sub(self.billionths(now));
        let nanos = short.div_ceil(self.per_second);
        Some(now + Duration::from_nanos(nanos))
    }

    fn units(&self, amount: &u64) -> u64 {
        *amount
    }
}

/// An admission on a clock that the test owns, and jobs that ask it.
pub(crate) struct Line {
    pub(crate) clock: ManualClock,
    pub(crate) bus: MessageBus,
    pub(crate) bench: Arc<AdmissionBench>,
}

/// A job that asks, on a thread of its own.
pub(crate) struct Asking {
    pub(crate) context: JobContext,
    thread: JoinHandle<Result<Grant, JobError>>,
}

impl Line {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let bus = MessageBus::standalone(Arc::clone(&shared));
        let bench = Arc::new(AdmissionBench::start(shared, &bus).unwrap());
        Self { clock, bus, bench }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn context(&self) -> JobContext {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        testing::context(&clock, &self.bus, "user", None).unwrap()
    }

    /// Asks on this thread; for what is known to be granted or refused at once.
    pub(crate) fn admit(&self, demand: Demand) -> Result<Grant, JobError> {
        self.bench.admission().admit(demand, &self.context())
    }

    /// Asks on a thread of its own and returns once it is parked or has its answer.
    pub(crate) fn ask(&self, demand: Demand) -> Asking {
        // A release before this may still be on its way to a waiter.
        self.quiesce();
        let before = self.parked();
        let context = self.context();
        let bench = Arc::clone(&self.bench);
        let thread = {
            let context = context.clone();
            thread::spawn(move || bench.admission().admit(demand, &context))
        };
        while self.parked() <= before && !thread.is_finished() {
            thread::yield_now();
        }
        self.quiesce();
        Asking { context, thread }
    }

    pub(crate) fn parked(&self) -> usize {
        self.bench.admission().queue_len()
    }

    pub(crate) fn quiesce(&self) {
        self.bench.quiesce();
    }

    pub(crate) fn advance(&self, step: Duration) {
        self.clock.advance(step);
        self.quiesce();
    }
}

impl Asking {
    /// Waits for the answer.
    pub(crate) fn answer(self) -> Result<Grant, JobError> {
        self.thread.join().unwrap()
    }

    /// Waits for the grant.
    pub(crate) fn granted(self) -> Grant {
        self.answer().unwrap()
    }
}

/// A demand for one amount.
pub(crate) fn of<L: RateLimiter>(limiter: &Arc<L>, amount: L::Amount) -> Demand {
    let mut demand = Demand::new();
    demand.add(limiter, amount);
    demand
}

/// A demand for an amount on each of two limits.
pub(crate) fn both<A: RateLimiter, B: RateLimiter>(
    a: (&Arc<A>, A::Amount),
    b: (&Arc<B>, B::Amount),
) -> Demand {
    let mut demand = of(a.0, a.1);
    demand.add(b.0, b.1);
    demand
}
