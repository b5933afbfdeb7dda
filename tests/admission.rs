//! Admission by its public behaviour: who is granted, when, and who is told.

#[path = "support/line.rs"]
mod line;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use line::{Asking, Line, Meter, both, of};
use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, Demand, RateLimiter, Replenishment,
    TokenBucket, TokenBudget,
};
use nucleo_runtime::events::{Event, EventFilter, EventKind, LimiterChange};
use nucleo_runtime::{
    ErrorKind, JobDispatcher, JobError, JobRequirements, ShutdownError, Workflow, job_fn,
};

fn gate(name: &str, capacity: u32) -> Arc<CountingGate> {
    Arc::new(CountingGate::new(name, capacity).unwrap())
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// case ADM-01
// case ADM-04
#[test]
fn a_waiter_holds_nothing_of_what_is_plentiful() {
    let line = Line::new();
    let meter = Meter::drained("tokens", 100_000, 0, line.now());
    let http = gate("http", 1_000);
    let waiting: Vec<Asking> = (0..1_000)
        .map(|_| line.ask(both((&meter, 100), (&http, ()))))
        .collect();
    assert_eq!(line.parked(), 1_000);
    assert_eq!(http.in_use(), 0);

    meter.add(100_000, line.now());
    let grants: Vec<_> = waiting.into_iter().map(Asking::granted).collect();
    assert_eq!(http.in_use(), 1_000);
    drop(grants);
    assert_eq!(http.in_use(), 0);
}

// case ADM-02
#[test]
fn a_metered_debit_lands_at_the_grant_and_not_before() {
    let line = Line::new();
    let meter = Meter::full("tokens", 1_000, 0, line.now());
    let permit = gate("permit", 1);
    let holder = line.admit(of(&permit, ())).unwrap();
    let waiting = line.ask(both((&meter, 400), (&permit, ())));
    assert_eq!(meter.level(line.now()), 1_000);
    assert_eq!(meter.takes.load(Ordering::SeqCst), 0);

    holder.release();
    let _grant = waiting.granted();
    assert_eq!(meter.level(line.now()), 600);
}

// case ADM-05
#[test]
fn the_head_is_served_before_the_small_ones_that_would_fit() {
    let line = Line::new();
    let meter = Meter::drained("tokens", 1_000, 1_000, line.now());
    let head = line.ask(of(&meter, 600));
    let small: Vec<_> = (0..5).map(|_| line.ask(of(&meter, 300))).collect();

    line.advance(millis(350));
    assert_eq!(
        line.parked(),
        6,
        "300 is there, but 600 of it is the head's"
    );
    line.advance(millis(300));
    let _head = head.granted();
    assert_eq!(line.parked(), 5);
    let mut ticks = 0;
    while line.parked() > 0 {
        line.advance(millis(500));
        ticks += 1;
        assert!(ticks <= 20, "the small ones starve");
    }
    for waiting in small {
        drop(waiting.granted());
    }
}

// case ADM-06
#[test]
fn a_demand_that_touches_nothing_of_the_heads_passes_at_its_first_look() {
    let line = Line::new();
    let meter = Meter::drained("tokens", 1_000, 0, line.now());
    let other = gate("other", 1);
    let waiting: Vec<_> = (0..50).map(|_| line.ask(of(&meter, 10))).collect();
    let _passed = line.admit(of(&other, ())).unwrap();
    assert_eq!(line.parked(), 50);
    meter.add(1_000, line.now());
    for asking in waiting {
        drop(asking.granted());
    }
}

// case ADM-07
#[test]
fn each_release_grants_the_next_in_line() {
    let line = Line::new();
    let slots = gate("slots", 3);
    let holders: Vec<_> = (0..3)
        .map(|_| line.admit(of(&slots, ())).unwrap())
        .collect();
    let waiting: Vec<_> = (0..3).map(|_| line.ask(of(&slots, ()))).collect();
    let mut kept = Vec::new();
    for (index, (holder, asking)) in holders.into_iter().zip(waiting).enumerate() {
        holder.release();
        // Granted in order: waiting for the first one that is left ends only if it is the one.
        kept.push(asking.granted());
        assert_eq!(line.parked(), 2 - index);
    }
}

// case ADM-10
#[test]
fn raised_caps_are_looked_at_without_waiting_for_the_old_instant() {
    let line = Line::new();
    let budget = TokenBudget::new(1_000, 60);
    let bucket = Arc::new(TokenBucket::new("model", budget, line.now()).unwrap());
    drop(line.admit(of(&bucket, 1_000)).unwrap());
    let waiting = line.ask(of(&bucket, 500));
    assert_eq!(line.parked(), 1);
    bucket.set_config(TokenBudget::new(60_000_000, 60_000), line.now());
    // The level is what it was; at the new rate the shortfall closes within a millisecond.
    line.quiesce();
    line.advance(millis(1));
    drop(waiting.granted());
}

// case ADM-14
#[test]
fn two_amounts_on_one_account_are_asked_together() {
    let line = Line::new();
    let meter = Meter::at("tokens", 1_000, 500, 0, line.now());
    let mut demand = of(&meter, 300);
    demand.add(&meter, 300);
    assert_eq!(demand.amounts().collect::<Vec<_>>(), [("tokens", 600)]);
    let waiting = line.ask(demand);
    assert_eq!(line.parked(), 1);
    meter.add(100, line.now());
    let _grant = waiting.granted();
    assert_eq!(meter.level(line.now()), 0);
}

// case ADM-15
// case RES-15
// case F8
#[test]
fn a_cancelled_head_leaves_at_once_and_reserves_nothing() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let holder = line.admit(of(&slots, ())).unwrap();
    let head = line.ask(of(&slots, ()));
    let follower = line.ask(of(&slots, ()));
    nucleo_runtime::testing::cancel(&head.context, "not needed");
    let error = head.answer().unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(line.parked(), 1);
    holder.release();
    drop(follower.granted());
    assert_eq!(slots.in_use(), 0);
}

// case ADM-16
#[test]
fn a_stop_refuses_whoever_waits_and_whoever_comes_later() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let _holder = line.admit(of(&slots, ())).unwrap();
    let waiting: Vec<_> = (0..3).map(|_| line.ask(of(&slots, ()))).collect();
    line.bench.stop();
    for asking in waiting {
        assert!(asking.answer().unwrap_err().is_cancelled());
    }
    assert_eq!(line.parked(), 0);
    assert!(line.admit(of(&slots, ())).unwrap_err().is_cancelled());
}

// case ADM-19
#[test]
fn a_grant_settles_once() {
    let line = Line::new();
    let slots = gate("slots", 2);
    let _other = line.admit(of(&slots, ())).unwrap();
    let grant = line.admit(of(&slots, ())).unwrap();
    grant.release();
    grant.release();
    grant.rollback();
    assert_eq!(slots.in_use(), 1);
}

// case ADM-22
// case ADM-26
#[test]
fn a_follower_takes_what_lies_above_the_heads_reservation() {
    let line = Line::new();
    let meter = Meter::full("tokens", 1_000, 0, line.now());
    let other = gate("other", 1);
    let holder = line.admit(of(&other, ())).unwrap();
    let head = line.ask(both((&meter, 800), (&other, ())));
    // 800 are the head's: 200 pass, 201 wait.
    let too_much = line.ask(of(&meter, 201));
    assert_eq!(line.parked(), 2);
    let passes = line.admit(of(&meter, 200)).unwrap();
    passes.rollback();
    holder.release();
    drop(head.granted());
    assert_eq!(line.parked(), 1);
    meter.add(800, line.now());
    drop(too_much.granted());
}

// case ADM-27
// case DG-02
#[test]
fn what_fits_an_empty_queue_is_granted_on_the_callers_thread() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let grant = line.admit(of(&slots, ())).unwrap();
    assert_eq!(grant.wait(), Duration::ZERO);
    assert_eq!(grant.waits().count(), 0);
    assert!(!grant.is_empty());
    assert!(line.admit(Demand::new()).unwrap().is_empty());
}

// case DG-01
#[test]
fn entries_stand_in_the_order_of_their_first_amount() {
    let line = Line::new();
    let meter = Meter::full("meter", 1_000, 0, line.now());
    let slot = gate("slot", 1);
    let mut demand = Demand::new();
    assert!(demand.is_empty());
    demand.add(&meter, 100);
    demand.add(&slot, ());
    demand.add(&meter, 50);
    assert_eq!(demand.len(), 2);
    assert_eq!(
        demand.amounts().collect::<Vec<_>>(),
        [("meter", 150), ("slot", 1)]
    );
}

// case DG-04
#[test]
fn an_account_is_credited_from_its_refusal_to_the_grant() {
    let line = Line::new();
    let (first, second) = (gate("first", 1), gate("second", 1));
    let holds_first = line.admit(of(&first, ())).unwrap();
    let holds_second = line.admit(of(&second, ())).unwrap();
    let waiting = line.ask(both((&first, ()), (&second, ())));
    line.advance(millis(1_000));
    holds_first.release();
    line.quiesce();
    assert_eq!(line.parked(), 1);
    line.advance(millis(1_000));
    holds_second.release();
    let grant = waiting.granted();
    assert_eq!(grant.wait(), millis(2_000));
    assert_eq!(
        grant.waits().collect::<Vec<_>>(),
        [("first", millis(2_000)), ("second", millis(2_000))]
    );
}

// case ACC-12
// case ADM-24
#[test]
fn a_release_returns_what_was_held_and_a_rollback_returns_everything() {
    let line = Line::new();
    let meter = Meter::full("meter", 1_000, 0, line.now());
    let slot = gate("slot", 1);
    line.admit(both((&slot, ()), (&meter, 400)))
        .unwrap()
        .release();
    assert_eq!((slot.in_use(), meter.level(line.now())), (0, 600));
    line.admit(both((&slot, ()), (&meter, 400)))
        .unwrap()
        .rollback();
    assert_eq!((slot.in_use(), meter.level(line.now())), (0, 600));
    assert_eq!(meter.gives.load(Ordering::SeqCst), 1);
}

/// An account whose answers the test dictates.
struct Scripted {
    key: AccountKey,
    answer: Mutex<Box<dyn FnMut() -> Result<bool, JobError> + Send>>,
    declines: AtomicBool,
    taken: AtomicUsize,
}

impl Scripted {
    fn new(
        name: &str,
        answer: impl FnMut() -> Result<bool, JobError> + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new(name),
            answer: Mutex::new(Box::new(answer)),
            declines: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
        })
    }
}

impl RateLimiter for Scripted {
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
        (self.answer.lock().unwrap())()
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        if self.declines.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

// case ADM-11
// case F1
// case F9
#[test]
fn a_refusal_is_the_accounts_own_and_charges_nothing() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let meter = Meter::full("meter", 1_000, 0, line.now());
    let refusing = Scripted::new("circuit", || {
        Err(JobError::uncorrectable("the circuit is open for 30 s"))
    });
    let holder = line.admit(of(&slots, ())).unwrap();
    let patient = line.ask(of(&slots, ()));

    let mut demand = both((&slots, ()), (&refusing, ()));
    demand.add(&meter, 400);
    let error = line.admit(demand).unwrap_err();
    assert_eq!(error.to_string(), "the circuit is open for 30 s");
    assert_eq!(line.parked(), 1);
    assert_eq!(meter.level(line.now()), 1_000);
    holder.release();
    drop(patient.granted());
}

// case F4
#[test]
fn what_can_never_fit_is_refused_at_once_naming_both_figures() {
    let line = Line::new();
    let bucket = TokenBucket::new("model", TokenBudget::new(10, 10), line.now()).unwrap();
    let bucket = Arc::new(bucket);
    let error = line.admit(of(&bucket, 1_000_000)).unwrap_err().to_string();
    // The digits of both figures, however they are grouped.
    assert!(
        error.contains("1000000") || error.contains("1_000_000") || error.contains("1 000 000"),
        "{error}"
    );
    assert!(error.contains("10"), "{error}");
    drop(line.admit(of(&bucket, 10)).unwrap());
}

// case ADM-12
#[test]
fn an_account_with_a_bug_fails_its_waiter_alone() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let holder = line.admit(of(&slots, ())).unwrap();
    let patient = line.ask(of(&slots, ()));
    let buggy = Scripted::new("buggy", || panic!("index out of bounds"));
    let error = line.admit(of(&buggy, ())).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Uncorrectable { .. }),
        "{error:?}"
    );
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("index out of bounds"), "{cause}");
    holder.release();
    drop(patient.granted());
}

#[test]
fn a_take_that_is_declined_gives_back_what_the_attempt_took() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let fickle = Scripted::new("fickle", || Ok(true));
    fickle.declines.store(true, Ordering::SeqCst);
    let waiting = line.ask(both((&slots, ()), (&fickle, ())));
    assert_eq!(line.parked(), 1);
    assert_eq!(
        slots.in_use(),
        0,
        "taken, declined further on, and given back"
    );
    fickle.declines.store(false, Ordering::SeqCst);
    line.bench.wake();
    drop(waiting.granted());
    assert_eq!(slots.in_use(), 0);
    assert_eq!(fickle.taken.load(Ordering::SeqCst), 0);
}

#[test]
fn an_account_that_cannot_take_back_fails_everyone_and_hangs_nobody() {
    struct Broken(AccountKey);
    impl RateLimiter for Broken {
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
            panic!("lost count");
        }
        fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
            None
        }
    }
    let line = Line::new();
    let slots = gate("slots", 1);
    let _holder = line.admit(of(&slots, ())).unwrap();
    let waiting = line.ask(of(&slots, ()));
    let broken = Arc::new(Broken(AccountKey::new("broken")));
    line.admit(of(&broken, ())).unwrap().release();
    let error = waiting.answer().unwrap_err();
    assert!(error.to_string().contains("broken"), "{error}");
    assert!(line.admit(of(&slots, ())).is_err());
}

#[test]
fn an_account_cannot_wait_for_the_end_of_the_runtime_that_asks_it() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let inside = dispatcher.clone();
    let calling = Scripted::new("calling", move || {
        let shutdown = inside.shutdown(Duration::ZERO);
        assert_eq!(shutdown.unwrap_err(), ShutdownError::FromInside);
        assert!(inside.drain(Duration::ZERO).is_err());
        Ok(true)
    });
    let workflow = Workflow::new("alice", "inside").unwrap();
    let needs = move || JobRequirements::none().limiter(&calling, ());
    let job = dispatcher.submit(&workflow, job_fn(needs, |_, _| Ok(7)));
    assert_eq!(*job.unwrap().get().unwrap(), 7);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn an_account_that_calls_the_runtime_is_told_so_at_once() {
    let line = Line::new();
    let (bench, context) = (Arc::clone(&line.bench), line.context());
    let calling = Scripted::new("calling", move || {
        bench
            .admission()
            .admit(Demand::new(), &context)
            .map(|_| true)
    });
    let context = line.context();
    let sleeping = Scripted::new("sleeping", move || {
        context.sleep(Duration::from_secs(3_600)).map(|()| true)
    });
    for account in [calling, sleeping] {
        let error = line.admit(of(&account, ())).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("must not call the runtime"), "{cause}");
    }
}

#[test]
fn an_account_serves_one_admission_and_a_name_one_account() {
    let (one, other) = (Line::new(), Line::new());
    let slots = gate("slots", 1);
    drop(one.admit(of(&slots, ())).unwrap());
    let error = other.admit(of(&slots, ())).unwrap_err().to_string();
    assert!(
        error.contains("slots") && error.contains("belongs to admission"),
        "{error}"
    );
    let namesake = gate("slots", 1);
    let error = one.admit(of(&namesake, ())).unwrap_err().to_string();
    assert!(error.contains("two accounts are named 'slots'"), "{error}");
    one.bench.stop();
    drop(other.admit(of(&slots, ())).unwrap());
}

/// The limiter events of one account, as text.
fn recorded(
    line: &Line,
) -> (
    nucleo_runtime::events::Subscription,
    mpsc::Receiver<(LimiterChange, usize, Duration, bool)>,
) {
    line.bus.start();
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let subscription = line
        .bus
        .subscribe(
            EventFilter::all().kind(EventKind::Limiter),
            Arc::new(move |event: &Arc<Event>| {
                if let Event::Limiter(event) = &**event {
                    let told = (
                        event.change,
                        event.waiters,
                        event.wait,
                        event.snapshot.is_some(),
                    );
                    let _ = sender.lock().unwrap().send(told);
                }
            }),
        )
        .unwrap();
    (subscription, receiver)
}

// case ADE-01
#[test]
fn an_immediate_grant_is_one_event() {
    let line = Line::new();
    let (_subscription, events) = recorded(&line);
    let slots = gate("slots", 1);
    let grant = line.admit(of(&slots, ())).unwrap();
    let told = events.recv().unwrap();
    assert_eq!(
        told,
        (LimiterChange::GrantedImmediate, 0, Duration::ZERO, true)
    );
    line.bus.stop().unwrap();
    assert!(events.try_recv().is_err());
    drop(grant);
}

// case ADE-02
#[test]
fn a_hold_is_told_once_and_its_grant_with_the_wait() {
    let line = Line::new();
    let (_subscription, events) = recorded(&line);
    let slots = gate("slots", 1);
    let holder = line.admit(of(&slots, ())).unwrap();
    let waiting = line.ask(of(&slots, ()));
    line.bench.wake();
    line.quiesce();
    line.advance(millis(1_500));
    holder.release();
    let _grant = waiting.granted();
    line.bus.stop().unwrap();
    let told: Vec<_> = events.try_iter().collect();
    assert_eq!(
        told,
        [
            (LimiterChange::GrantedImmediate, 0, Duration::ZERO, true),
            (LimiterChange::Held, 1, Duration::ZERO, true),
            (LimiterChange::Released, 1, Duration::ZERO, true),
            (LimiterChange::GrantedFromHold, 0, millis(1_500), true),
        ]
    );
}

// case F2
#[test]
fn a_large_demand_among_a_stream_of_small_ones_is_served() {
    let line = Line::new();
    let slots = gate("slots", 4);
    let mut running: Vec<_> = (0..4)
        .map(|_| line.admit(of(&slots, ())).unwrap())
        .collect();
    let mut large = Demand::new();
    for _ in 0..4 {
        large.add(&slots, ());
    }
    let large = line.ask(large);
    let mut small = Vec::new();
    for _ in 0..20 {
        small.push(line.ask(of(&slots, ())));
        if let Some(grant) = running.pop() {
            grant.release();
        }
    }
    // Every hole was kept for it.
    drop(large.granted());
    for asking in small {
        drop(asking.granted());
    }
}

// case F3
#[test]
fn a_slot_that_comes_back_is_granted_without_any_time_passing() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let before = line.clock.elapsed();
    let holder = line.admit(of(&slots, ())).unwrap();
    let waiting = line.ask(of(&slots, ()));
    holder.release();
    drop(waiting.granted());
    assert_eq!(line.clock.elapsed(), before);
}

// case F18
#[test]
fn many_threads_at_once_never_pass_the_limit() {
    let line = Arc::new(Line::new());
    let slots = gate("slots", 3);
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..16 {
            let (line, slots) = (Arc::clone(&line), Arc::clone(&slots));
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            scope.spawn(move || {
                for _ in 0..200 {
                    let grant = line.admit(of(&slots, ())).unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    grant.release();
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    assert_eq!((slots.in_use(), line.parked()), (0, 0));
}

// case ACC-07
#[test]
fn an_account_that_cannot_describe_itself_has_no_event_and_serves_all_the_same() {
    struct Shy(AccountKey);
    impl RateLimiter for Shy {
        type Amount = ();
        fn account_for(&self, (): &()) -> AccountKey {
            self.0.clone()
        }
        fn describe(&self, _: &AccountKey) -> AccountStatus {
            panic!("no name for this");
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
        fn give(&self, _: &[()], _: Instant) {}
        fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
            None
        }
    }
    let line = Line::new();
    let (_subscription, events) = recorded(&line);
    let (shy, slots) = (Arc::new(Shy(AccountKey::new("shy"))), gate("slots", 1));
    drop(line.admit(both((&shy, ()), (&slots, ()))).unwrap());
    line.bus.stop().unwrap();
    let told: Vec<_> = events.try_iter().map(|(change, ..)| change).collect();
    assert_eq!(
        told,
        [LimiterChange::GrantedImmediate, LimiterChange::Released]
    );
}
