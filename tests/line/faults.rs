//! Bad input: figures at their ends, a clock that stands still, and accounts that break the
//! contract in each of their methods.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, Demand, ElasticWindow, Grant,
    RateLimiter, Replenishment, TokenBucket, TokenBudget,
};
use nucleo_runtime::events::{BusError, Event, EventFilter, Observer};
use nucleo_runtime::observe::WorkflowObserver;
use nucleo_runtime::testing::{self, AdmissionBench, SteppedLine};
use nucleo_runtime::{ErrorKind, JobDispatcher, JobError};

use super::cases::gate;
use super::line::{Asking, Line, both, of};
use super::told::Told;

#[test]
fn capacities_and_windows_of_zero_are_refused_by_name() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    let errors = [
        CountingGate::new("a", 0).unwrap_err(),
        CountingGate::http(0).unwrap_err(),
        CountingGate::database("a", 0).unwrap_err(),
        CountingGate::model("a", 0).unwrap_err(),
        TokenBucket::new("a", TokenBudget::new(0, 1), now).unwrap_err(),
        TokenBucket::new("a", TokenBudget::new(1, 0), now).unwrap_err(),
        ElasticWindow::builder("a", 0, second).build().unwrap_err(),
        ElasticWindow::builder("a", 1, Duration::ZERO)
            .build()
            .unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains('0'), "{error}");
    }
}

#[test]
fn amounts_of_zero_and_of_the_most_there_is_are_served_or_refused() {
    let now = Instant::now();
    let most = u32::MAX;
    let mut line = SteppedLine::new();
    let bucket = |name, tokens| {
        let budget = TokenBudget::new(tokens, 1_000);
        Arc::new(TokenBucket::new(name, budget, now).unwrap())
    };
    let (small, huge) = (bucket("small", 1), bucket("huge", most));
    // No tokens are a request all the same.
    for _ in 0..1_000 {
        let place = line.arrive(of(&small, 0), now).unwrap();
        assert!(line.holds(place));
    }
    assert_eq!(small.status(now).tokens, 1);
    let place = line.arrive(of(&small, 0), now).unwrap();
    assert!(!line.holds(place), "there is no request left");
    assert!(line.withdraw(place, now));

    let error = line.arrive(of(&small, most), now).unwrap_err();
    assert!(error.to_string().contains("exceed"), "{error}");
    let mut twice = of(&huge, most);
    twice.add(&huge, most);
    assert!(line.arrive(twice, now).is_err(), "the sum is not wrapped");
    let all = line.arrive(of(&huge, most), now).unwrap();
    assert!(line.holds(all));
    let head = line.arrive(of(&huge, most), now).unwrap();
    let behind = line.arrive(of(&huge, most), now).unwrap();
    assert!(line.waits(head) && line.waits(behind));
    let next = line.walk(now).unwrap().next.unwrap();
    assert_eq!(next, now + Duration::from_secs(60));
    assert_eq!(line.walk(next).unwrap().granted, [head]);
    let last = next + Duration::from_secs(60);
    assert_eq!(line.walk(last).unwrap().granted, [behind]);

    let slots = gate("slots", most);
    let place = line.arrive(of(&slots, ()), now).unwrap();
    assert_eq!(slots.available(), most - 1);
    line.release(place, now).unwrap();
    assert_eq!(slots.in_use(), 0);
}

#[test]
fn while_the_clock_stands_still_events_are_served_and_instants_are_not() {
    let line = Line::new();
    let bucket = TokenBucket::new("model", TokenBudget::new(100, 100), line.now()).unwrap();
    let (bucket, slots) = (Arc::new(bucket), gate("slots", 1));
    let spent = line.admit(of(&bucket, 100)).unwrap();
    let holder = line.admit(of(&slots, ())).unwrap();
    let on_tokens = line.ask(of(&bucket, 50));
    let on_slot = line.ask(of(&slots, ()));
    let cancelled = line.ask(of(&bucket, 1));
    for _ in 0..100 {
        line.bench.wake();
        line.quiesce();
    }
    assert_eq!(line.parked(), 3);
    testing::cancel(&cancelled.context, "not needed");
    assert!(cancelled.answer().unwrap_err().is_cancelled());
    holder.release();
    drop(on_slot.granted());
    assert_eq!(line.parked(), 1);
    // Tokens come back without time when what they were spent on never happened.
    spent.rollback();
    drop(on_tokens.granted());
}

/// What an account of a user's own may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    Fits,
    Take,
    Earliest,
    Give,
    Describe,
    Units,
    Revision,
    Replenishment,
    AmountEq,
    AmountHash,
    AmountDebug,
    AmountDrop,
    AmountClone,
}

/// One permit; panics where it is told to. What it asks for is of a type of its own.
struct Faulty {
    key: AccountKey,
    broken: Mutex<Broken>,
    in_use: Mutex<usize>,
}

struct Amount(Arc<Faulty>);

impl Faulty {
    fn new(broken: Broken) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new("faulty"),
            broken: Mutex::new(broken),
            in_use: Mutex::new(0),
        })
    }

    fn breaks_at(&self, place: Broken) {
        let broken = *self.broken.lock().unwrap();
        assert!(broken != place, "broken: {broken:?}");
    }

    fn mend(&self) {
        *self.broken.lock().unwrap() = Broken::Nothing;
    }

    fn demand(self: &Arc<Self>) -> Demand {
        of(self, Amount(Arc::clone(self)))
    }
}

impl PartialEq for Amount {
    fn eq(&self, _: &Self) -> bool {
        self.0.breaks_at(Broken::AmountEq);
        true
    }
}

impl Eq for Amount {}

impl Hash for Amount {
    fn hash<H: Hasher>(&self, _: &mut H) {
        self.0.breaks_at(Broken::AmountHash);
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.breaks_at(Broken::AmountDebug);
        f.write_str("Amount")
    }
}

impl Drop for Amount {
    fn drop(&mut self) {
        self.0.breaks_at(Broken::AmountDrop);
    }
}

impl Clone for Amount {
    fn clone(&self) -> Self {
        self.0.breaks_at(Broken::AmountClone);
        Self(Arc::clone(&self.0))
    }
}

impl RateLimiter for Faulty {
    type Amount = Amount;

    fn account_for(&self, _: &Amount) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        self.breaks_at(Broken::Describe);
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        self.breaks_at(Broken::Replenishment);
        Replenishment::Release
    }

    fn fits(&self, mine: &[Amount], ahead: &[Amount], _: Instant) -> Result<bool, JobError> {
        self.breaks_at(Broken::Fits);
        Ok(*self.in_use.lock().unwrap() + mine.len() + ahead.len() <= 1)
    }

    fn try_take(&self, mine: &[Amount], ahead: &[Amount], now: Instant) -> Result<bool, JobError> {
        self.breaks_at(Broken::Take);
        let fits = self.fits(mine, ahead, now)?;
        if fits {
            *self.in_use.lock().unwrap() += mine.len();
        }
        Ok(fits)
    }

    fn give(&self, amounts: &[Amount], _: Instant) {
        self.breaks_at(Broken::Give);
        *self.in_use.lock().unwrap() -= amounts.len();
    }

    fn earliest_fit(&self, _: &[Amount], _: &[Amount], _: Instant) -> Option<Instant> {
        self.breaks_at(Broken::Earliest);
        None
    }

    fn revision(&self) -> Option<u64> {
        self.breaks_at(Broken::Revision);
        Some(0)
    }

    fn units(&self, _: &Amount) -> u64 {
        self.breaks_at(Broken::Units);
        1
    }
}

#[test]
fn a_panic_in_what_an_account_is_asked_fails_its_waiter_alone() {
    for broken in [Broken::Fits, Broken::Take] {
        let line = Line::new();
        let _told = Told::by(&line);
        let (faulty, slots) = (Faulty::new(broken), gate("slots", 1));
        let mut demand = of(&slots, ());
        demand.add(&faulty, Amount(Arc::clone(&faulty)));
        let error = line.admit(demand).unwrap_err();
        assert!(error.to_string().contains("faulty"), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("broken"), "{cause}");
        assert_eq!(slots.in_use(), 0, "{broken:?}");
        faulty.mend();
        line.admit(faulty.demand()).unwrap().release();
        assert_eq!(*faulty.in_use.lock().unwrap(), 0);
    }
}

#[test]
fn a_panic_in_anything_else_that_an_account_says_stops_nobody() {
    for broken in [
        Broken::Nothing,
        Broken::Earliest,
        Broken::Describe,
        Broken::Units,
        Broken::Revision,
        Broken::AmountEq,
        Broken::AmountHash,
        Broken::AmountDebug,
        Broken::AmountDrop,
        Broken::AmountClone,
    ] {
        let line = Line::new();
        let _told = Told::by(&line);
        let (faulty, slots) = (Faulty::new(broken), gate("slots", 1));
        let holder = line.admit(faulty.demand()).unwrap();
        let waiting: Vec<_> = (0..3).map(|_| line.ask(faulty.demand())).collect();
        let with_slot = {
            let mut demand = faulty.demand();
            demand.add(&slots, ());
            line.ask(demand)
        };
        assert_eq!(line.parked(), 4, "{broken:?}");
        drop(line.admit(of(&slots, ())).unwrap());
        testing::cancel(&waiting[1].context, "not needed");
        drop(holder);
        for (number, asking) in waiting.into_iter().enumerate() {
            match asking.answer() {
                Ok(grant) => drop(grant),
                Err(error) => assert!(number == 1 && error.is_cancelled(), "{broken:?} {error}"),
            }
        }
        drop(with_slot.granted());
        line.quiesce();
        assert_eq!(line.parked(), 0, "{broken:?}");
        assert_eq!(*faulty.in_use.lock().unwrap(), 0, "{broken:?}");
        assert_eq!(slots.in_use(), 0, "{broken:?}");
    }
}

#[test]
fn two_amounts_that_panic_as_they_are_dropped_end_nothing() {
    let line = Line::new();
    let faulty = Faulty::new(Broken::AmountDrop);
    let mut demand = faulty.demand();
    demand.add(&faulty, Amount(Arc::clone(&faulty)));
    // Two of one is never granted: it waits until the line is stopped.
    let waiting = line.ask(demand);
    drop(faulty.demand());
    line.bench.stop();
    assert!(waiting.answer().unwrap_err().is_cancelled());
}

#[test]
fn an_account_that_cannot_say_how_it_is_given_back_fails_everyone_by_name() {
    for broken in [Broken::Give, Broken::Replenishment] {
        let line = Line::new();
        let (faulty, slots) = (Faulty::new(broken), gate("slots", 1));
        let _holder = line.admit(of(&slots, ())).unwrap();
        let waiting = line.ask(of(&slots, ()));
        line.admit(faulty.demand()).unwrap().release();
        let error = waiting.answer().unwrap_err();
        assert!(error.to_string().contains("'faulty'"), "{error}");
        assert!(line.admit(of(&slots, ())).is_err());
        assert_eq!(line.parked(), 0);
    }
}

/// A permit that runs something of the test's own whenever it is asked.
struct Meddling {
    key: AccountKey,
    meddle: Box<dyn Fn() + Send + Sync>,
}

impl Meddling {
    fn new(meddle: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new("meddling"),
            meddle: Box::new(meddle),
        })
    }
}

impl RateLimiter for Meddling {
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
        (self.meddle)();
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {}

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

#[test]
fn an_account_that_calls_the_runtime_hangs_nobody() {
    let line = Line::new();
    let refused = Arc::new(AtomicUsize::new(0));
    let meddling = {
        let (bench, context) = (Arc::clone(&line.bench), line.context());
        let refused = Arc::clone(&refused);
        Meddling::new(move || {
            let error = bench
                .admission()
                .admit(Demand::new(), &context)
                .unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::System { .. }));
            refused.fetch_add(1, Ordering::SeqCst);
            // What has no error to answer with answers all the same.
            assert_eq!(bench.admission().queue_len(), 0);
            assert_eq!(bench.admission().memory(), None);
            bench.wake();
        })
    };
    line.admit(of(&meddling, ())).unwrap().release();
    assert_eq!(refused.load(Ordering::SeqCst), 1);
}

/// Asks the line in everything that it is asked.
struct Asker(Arc<AdmissionBench>);

impl Observer for Asker {
    fn observe(&self, _: &Arc<Event>) {
        assert_eq!(self.0.admission().queue_len(), 0);
    }

    fn is_stale(&self) -> bool {
        self.0.admission().queue_len() == 0
    }
}

#[test]
fn an_account_that_waits_for_observers_hangs_nobody_who_asks_the_line() {
    let line = Line::new();
    line.bus.start();
    let asker = Arc::new(Asker(Arc::clone(&line.bench)));
    let observer = WorkflowObserver::new("workflow", |_: &Arc<Event>| {});
    let _stays = line.bus.subscribe(EventFilter::all(), asker).unwrap();
    let bus = line.bus.clone();
    let meddling = Meddling::new(move || {
        assert_eq!(bus.stop(), Err(BusError::InsideAccount));
        assert_eq!(bus.cleanup_stale_subscriptions(), 0);
        assert!(!observer.wait_ended(Duration::from_secs(3_600)));
    });
    line.admit(of(&meddling, ())).unwrap().release();
    // The sweep was asked for, and goes on once the step is over.
    while !line.bus.subscriptions().is_empty() {
        thread::yield_now();
    }
    assert!(line.bus.is_running());
    line.bus.stop().unwrap();
}

#[test]
fn an_account_that_starts_the_dispatcher_which_asks_it_is_refused() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    let inside = dispatcher.clone();
    let meddling = Meddling::new(move || {
        let error = inside.start().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::System { .. }), "{error}");
    });
    let context = testing::context(dispatcher.clock(), dispatcher.bus(), "user", None).unwrap();
    drop(
        dispatcher
            .admission()
            .admit(of(&meddling, ()), &context)
            .unwrap(),
    );
    dispatcher.start().unwrap();
}

#[test]
fn a_grant_that_is_settled_inside_an_account_comes_back_all_the_same() {
    let line = Line::new();
    let slots = gate("slots", 2);
    let kept: Arc<Mutex<Vec<Grant>>> = Arc::default();
    kept.lock().unwrap().extend([
        line.admit(of(&slots, ())).unwrap(),
        line.admit(of(&slots, ())).unwrap(),
    ]);
    let meddling = {
        let kept = Arc::clone(&kept);
        Meddling::new(move || {
            let mut kept = kept.lock().unwrap();
            if let Some(last) = kept.pop() {
                last.release();
            }
            // The other one by its drop.
            kept.clear();
        })
    };
    let both_slots = {
        let mut demand = of(&slots, ());
        demand.add(&slots, ());
        demand
    };
    let waiting = line.ask(both_slots);
    assert_eq!(line.parked(), 1);
    line.admit(of(&meddling, ())).unwrap().release();
    drop(waiting.granted());
    assert_eq!(slots.in_use(), 0);
}

#[test]
fn two_accounts_of_one_name_and_an_account_of_another_line_are_refused_alone() {
    let line = Line::new();
    let (slots, namesake) = (gate("slots", 1), gate("slots", 1));
    let holder = line.admit(of(&slots, ())).unwrap();
    let waiting: Asking = line.ask(of(&slots, ()));
    let free = gate("free", 1);
    let error = line.admit(both((&free, ()), (&namesake, ()))).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::System { .. }),
        "{error:?}"
    );
    let other = Line::new();
    let error = other.admit(both((&free, ()), (&slots, ()))).unwrap_err();
    assert!(
        error.to_string().contains("belongs to admission"),
        "{error}"
    );
    assert_eq!((free.in_use(), line.parked(), other.parked()), (0, 1, 0));
    holder.release();
    drop(waiting.granted());
}

#[test]
fn an_account_that_says_that_it_grew_whenever_it_is_asked_is_not_asked_for_ever() {
    struct Growing {
        key: AccountKey,
        asked: AtomicUsize,
        open: AtomicBool,
    }
    impl RateLimiter for Growing {
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
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.key.capacity_grew();
            Ok(self.open.load(Ordering::SeqCst))
        }
        fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
            Ok(true)
        }
        fn give(&self, _: &[()], _: Instant) {}
        fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
            None
        }
    }
    let line = Line::new();
    let growing = Arc::new(Growing {
        key: AccountKey::new("growing"),
        asked: AtomicUsize::new(0),
        open: AtomicBool::new(false),
    });
    // It returns, so the evaluator sleeps.
    let waiting = line.ask(of(&growing, ()));
    let asked = growing.asked.swap(0, Ordering::SeqCst);
    assert!(asked < 200, "asked {asked} times");
    for _ in 0..100 {
        line.advance(Duration::from_millis(1));
    }
    let asked = growing.asked.swap(0, Ordering::SeqCst);
    assert!((100..300).contains(&asked), "asked {asked} times");
    // A call from elsewhere is heard at once.
    growing.open.store(true, Ordering::SeqCst);
    growing.key.capacity_grew();
    drop(waiting.granted());
}

#[test]
fn a_demand_for_nothing_is_granted_in_a_line_that_is_to_be_walked() {
    let now = Instant::now();
    let slots = gate("slots", 1);
    let mut line = SteppedLine::new();
    let first = line.arrive(of(&slots, ()), now).unwrap();
    let second = line.arrive(of(&slots, ()), now).unwrap();
    line.release(first, now).unwrap();
    let nothing = line.arrive(Demand::new(), now).unwrap();
    assert!(line.holds(nothing) && line.waits(second));
    let last = line.arrive(of(&slots, ()), now).unwrap();
    assert_eq!([first, second, nothing, last], [1, 2, 3, 4]);
    assert_eq!(line.walk(now).unwrap().granted, [second]);
    line.release(nothing, now).unwrap();
    line.release(second, now).unwrap();
    assert_eq!(line.walk(now).unwrap().granted, [last]);
    assert!(line.holds(last) && !line.holds(nothing));
}
