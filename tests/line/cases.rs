//! Cases of admission: an interrupt against a grant, instants, and what is told of refusals.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, Demand, RateLimiter, Replenishment,
    TokenBucket, TokenBudget,
};
use nucleo_runtime::events::{LimiterChange, RejectReason};
use nucleo_runtime::testing::{self, SteppedLine};
use nucleo_runtime::{ErrorKind, JobError};

use super::line::{Line, Meter, both, of};
use super::told::Told;

pub(crate) fn gate(name: &str, capacity: u32) -> Arc<CountingGate> {
    Arc::new(CountingGate::new(name, capacity).unwrap())
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A permit whose answers the test dictates one by one, and then always yes.
struct Dictated {
    key: AccountKey,
    answers: Mutex<VecDeque<Answer>>,
    asked: AtomicUsize,
    taken: AtomicUsize,
    /// Said to be when the clock alone closes the shortfall.
    instant: Option<Instant>,
    /// Runs inside the take.
    in_take: Box<dyn Fn() + Send + Sync>,
}

enum Answer {
    No,
    Refuse(&'static str),
    Panic(&'static str),
}

impl Dictated {
    fn new(name: &str, answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            key: AccountKey::new(name),
            answers: Mutex::new(answers.into_iter().collect()),
            asked: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            instant: None,
            in_take: Box::new(|| {}),
        }
    }
}

impl RateLimiter for Dictated {
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
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            None => Ok(true),
            Some(Answer::No) => Ok(false),
            Some(Answer::Refuse(why)) => Err(JobError::uncorrectable(why)),
            Some(Answer::Panic(why)) => panic!("{why}"),
        }
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        (self.in_take)();
        self.taken.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        self.instant
    }
}

// case ADM-17
#[test]
fn a_cancel_during_the_take_wins_over_the_grant() {
    let line = Line::new();
    let slots = gate("slots", 1);
    let (entered, inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let mut slow = Dictated::new("slow", [Answer::No]);
    slow.in_take = Box::new(move || {
        entered.send(()).unwrap();
        may_go_on.lock().unwrap().recv().unwrap();
    });
    let slow = Arc::new(slow);
    let waiting = line.ask(both((&slots, ()), (&slow, ())));
    assert_eq!(line.parked(), 1);
    line.bench.wake();
    // The evaluator is inside the take, the lock is its own.
    inside.recv().unwrap();
    assert_eq!(slots.in_use(), 1);
    assert!(testing::cancel(&waiting.context, "not needed"));
    go_on.send(()).unwrap();
    let error = waiting.answer().unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(slots.in_use(), 0, "the permit went back");
    assert_eq!(slow.taken.load(Ordering::SeqCst), 0);
    assert_eq!(line.parked(), 0);
}

/// Random figures that are the same in every run.
pub(crate) struct Figures(u64);

impl Figures {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `bound`.
    pub(crate) fn next(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

// case ADM-20
#[test]
fn every_random_demand_is_granted_and_no_account_overdrawn() {
    let line = Line::new();
    let mut figures = Figures::new(20);
    let gates: Vec<_> = (1..=4)
        .map(|size| gate(&format!("gate-{size}"), size))
        .collect();
    let meters: Vec<_> = (0..3)
        .map(|number| Meter::drained(&format!("meter-{number}"), 1_000, 5_000_000, line.now()))
        .collect();
    let inside: Vec<_> = gates.iter().map(|_| AtomicU32::new(0)).collect();
    let granted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..120 {
            let mut demand = Demand::new();
            let mut wanted = Vec::new();
            for (number, gate) in gates.iter().enumerate() {
                if figures.next(3) == 0 {
                    let count = 1 + figures.next(u64::from(gate.capacity())) as u32;
                    (0..count).for_each(|_| demand.add(gate, ()));
                    wanted.push((number, count));
                }
            }
            let meter = figures.next(3) as usize;
            demand.add(&meters[meter], 1 + figures.next(400));
            let (line, gates, inside, granted) = (&line, &gates, &inside, &granted);
            scope.spawn(move || {
                let grant = line.admit(demand).unwrap();
                for (number, count) in &wanted {
                    let now = inside[*number].fetch_add(*count, Ordering::SeqCst) + count;
                    assert!(now <= gates[*number].capacity());
                }
                for (number, count) in &wanted {
                    inside[*number].fetch_sub(*count, Ordering::SeqCst);
                }
                grant.release();
                granted.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut ticks = 0;
        while granted.load(Ordering::SeqCst) < 120 {
            line.advance(millis(20));
            // Until every demand has arrived the clock says nothing about how long they wait.
            if granted.load(Ordering::SeqCst) + line.parked() == 120 {
                ticks += 1;
            }
            assert!(ticks <= 3_000, "not all within 60 s");
        }
    });
    assert_eq!(line.parked(), 0);
    for gate in &gates {
        assert_eq!(gate.in_use(), 0);
    }
    for meter in &meters {
        assert!(meter.level(line.now()) <= 1_000);
    }
}

// case ADM-21
#[test]
fn one_unit_lets_one_of_ten_thousand_go() {
    let now = Instant::now();
    let meter = Meter::drained("tokens", 1_000, 0, now);
    let mut line = SteppedLine::new();
    for _ in 0..10_000 {
        line.arrive(of(&meter, 1), now).unwrap();
    }
    meter.add(1, now);
    let began = Instant::now();
    let walked = line.walk(now).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(walked.granted, [1]);
    assert_eq!(line.len(), 9_999);
    assert_eq!(meter.level(now), 0);
}

#[test]
fn nobody_who_arrives_overtakes_those_who_wait_for_what_has_just_grown() {
    let now = Instant::now();
    let blocked = gate("blocked", 1);
    let budget = TokenBudget::new(10, 100);
    let bucket = Arc::new(TokenBucket::new("bucket", budget, now).unwrap());
    let mut line = SteppedLine::new();
    line.arrive(of(&blocked, ()), now).unwrap();
    line.arrive(of(&blocked, ()), now).unwrap();
    line.arrive(of(&bucket, 10), now).unwrap();
    let first = line.arrive(of(&bucket, 5), now).unwrap();
    assert!(line.waits(first));
    bucket.set_config(TokenBudget::new(1_000, 100), now);
    // The larger budget fills with time, which the line has not been told of.
    let later = now + millis(400);
    let second = line.arrive(of(&bucket, 5), later).unwrap();
    assert!(line.waits(second), "it would have gone before the first");
    assert_eq!(line.walk(later).unwrap().granted, [first]);
}

// case ADM-25
#[test]
fn the_evaluator_sleeps_until_the_earliest_instant_of_anybody() {
    let line = Line::new();
    let slow = Meter::drained("slow", 1_000, 100, line.now());
    let fast = Meter::drained("fast", 1_000, 1_000, line.now());
    let never = gate("never", 1);
    let holder = line.admit(of(&never, ())).unwrap();
    let on_slow = line.ask(of(&slow, 100));
    let on_fast = line.ask(of(&fast, 100));
    let on_both = line.ask(both((&slow, 1), (&never, ())));
    line.advance(millis(99));
    assert_eq!(line.parked(), 3);
    line.advance(millis(1));
    drop(on_fast.granted());
    assert_eq!(line.parked(), 2);
    line.advance(millis(899));
    assert_eq!(line.parked(), 2);
    line.advance(millis(1));
    drop(on_slow.granted());
    // Nothing that the clock does closes what only an event can.
    line.advance(Duration::from_secs(3_600));
    assert_eq!(line.parked(), 1);
    holder.release();
    drop(on_both.granted());
}

// case ADM-25
#[test]
fn an_instant_in_the_past_means_that_it_is_looked_at_again_now() {
    let line = Line::new();
    let past = line.now();
    line.advance(millis(1_000));
    // Short for a while, and no event says when it no longer is.
    let short = (0..5).map(|_| Answer::No);
    let mut late = Dictated::new("late", short);
    late.instant = Some(past);
    let late = Arc::new(late);
    let before = line.clock.elapsed();
    let grant = line.admit(of(&late, ())).unwrap();
    assert_eq!(line.clock.elapsed(), before);
    assert_eq!(grant.wait(), Duration::ZERO);
    assert_eq!(late.asked.load(Ordering::SeqCst), 6);
}

#[test]
fn an_account_that_always_names_an_instant_in_the_past_does_not_keep_the_evaluator_busy() {
    let line = Line::new();
    let past = line.now();
    line.advance(millis(1_000));
    let mut wrong = Dictated::new("wrong", (0..200).map(|_| Answer::No));
    wrong.instant = Some(past);
    let wrong = Arc::new(wrong);
    let asked = || wrong.asked.load(Ordering::SeqCst);
    let waiting = line.ask(of(&wrong, ()));
    assert_eq!(line.parked(), 1);
    // The arrival's own question, the first walk, and 64 looks in vain.
    let until_it_slept = asked();
    assert!((64..=67).contains(&until_it_slept), "{until_it_slept}");
    // From there on once a millisecond.
    for looks in 1..=10 {
        line.advance(millis(1));
        assert_eq!(line.parked(), 1);
        assert_eq!(asked(), until_it_slept + looks);
    }
    // Nobody else is any slower for it.
    drop(line.admit(of(&gate("other", 1), ())).unwrap());
    for _ in 0..200 {
        line.advance(millis(1));
    }
    drop(waiting.granted());
}

// case ADM-25
#[test]
fn a_walk_names_the_earliest_instant_and_none_when_only_an_event_can_help() {
    let now = Instant::now();
    let slow = Meter::drained("slow", 1_000, 100, now);
    let fast = Meter::drained("fast", 1_000, 1_000, now);
    let held = gate("held", 1);
    let mut line = SteppedLine::new();
    let holder = line.arrive(of(&held, ()), now).unwrap();
    let mixed = line.arrive(both((&fast, 1), (&held, ())), now).unwrap();
    assert_eq!(line.walk(now).unwrap().next, None);
    // Of two metered shortfalls the later one is a waiter's.
    line.arrive(both((&slow, 100), (&fast, 100)), now).unwrap();
    assert_eq!(line.walk(now).unwrap().next, Some(now + millis(1_000)));
    line.arrive(of(&fast, 50), now).unwrap();
    // 50 of its own and the one that the head has set aside.
    assert_eq!(line.walk(now).unwrap().next, Some(now + millis(51)));
    line.release(holder, now).unwrap();
    let later = now + millis(51);
    // The next head has all of the rest set aside.
    assert_eq!(line.walk(later).unwrap().granted, [mixed]);
}

/// An event as the cases say it, with the wait in milliseconds.
fn event(
    account: &str,
    change: LimiterChange,
    reason: Option<RejectReason>,
    waiters: usize,
    wait: u64,
) -> super::told::Change {
    (account.to_owned(), change, reason, waiters, millis(wait))
}

// case ADE-04
#[test]
fn a_cancelled_waiter_is_told_as_rejected() {
    let line = Line::new();
    let told = Told::by(&line);
    let slots = gate("slots", 1);
    let holder = line.admit(of(&slots, ())).unwrap();
    let waiting = line.ask(of(&slots, ()));
    line.advance(millis(700));
    testing::cancel(&waiting.context, "not needed");
    assert!(waiting.answer().unwrap_err().is_cancelled());
    assert_eq!(line.parked(), 0);
    assert_eq!(
        told.all(&line),
        [
            event("slots", LimiterChange::GrantedImmediate, None, 0, 0),
            event("slots", LimiterChange::Held, None, 1, 0),
            event(
                "slots",
                LimiterChange::Rejected,
                Some(RejectReason::Cancelled),
                0,
                700
            ),
        ]
    );
    drop(holder);
}

// case ADE-05
#[test]
fn an_accounts_refusal_is_told_in_its_own_words() {
    let line = Line::new();
    let told = Told::by(&line);
    let blocked = Arc::new(Dictated::new(
        "search",
        [Answer::Refuse("search is blocked for 30 s")],
    ));
    let error = line.admit(of(&blocked, ())).unwrap_err();
    assert_eq!(error.to_string(), "search is blocked for 30 s");
    let reason = Some(RejectReason::CircuitBlocked);
    assert_eq!(
        told.all(&line),
        [event("search", LimiterChange::Rejected, reason, 0, 0)]
    );
}

// case ADE-06
#[test]
fn an_accounts_bug_is_told_as_aborted() {
    let line = Line::new();
    let told = Told::by(&line);
    let buggy = Arc::new(Dictated::new("buggy", [Answer::Panic("divided by zero")]));
    let error = line.admit(of(&buggy, ())).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Uncorrectable { .. }),
        "{error:?}"
    );
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("divided by zero"), "{cause}");
    let reason = Some(RejectReason::Aborted);
    assert_eq!(
        told.all(&line),
        [event("buggy", LimiterChange::Rejected, reason, 0, 0)]
    );
}

// case ADE-07
#[test]
fn a_rollback_is_one_release() {
    let line = Line::new();
    let told = Told::by(&line);
    let slots = gate("slots", 1);
    let grant = line.admit(of(&slots, ())).unwrap();
    grant.rollback();
    drop(grant);
    assert_eq!(slots.in_use(), 0);
    assert_eq!(
        told.all(&line),
        [
            event("slots", LimiterChange::GrantedImmediate, None, 0, 0),
            event("slots", LimiterChange::Released, None, 0, 0),
        ]
    );
}

// case ADE-10
#[test]
fn whoever_held_a_waiter_hears_why_another_refused_it() {
    let line = Line::new();
    let told = Told::by(&line);
    let held = gate("x", 1);
    // Fits at the arrival, refuses at the next look.
    let refusing = Dictated::new("y", []);
    let refusing = Arc::new(refusing);
    let holder = line.admit(of(&held, ())).unwrap();
    let waiting = line.ask(both((&held, ()), (&refusing, ())));
    line.advance(millis(400));
    refusing
        .answers
        .lock()
        .unwrap()
        .push_back(Answer::Refuse("y has closed"));
    line.bench.wake();
    assert_eq!(waiting.answer().unwrap_err().to_string(), "y has closed");
    let reason = Some(RejectReason::CircuitBlocked);
    assert_eq!(
        told.all(&line),
        [
            event("x", LimiterChange::GrantedImmediate, None, 0, 0),
            event("x", LimiterChange::Held, None, 1, 0),
            event("x", LimiterChange::Rejected, reason, 0, 400),
            event("y", LimiterChange::Rejected, reason, 0, 0),
        ]
    );
    drop(holder);
}

// case ADE-10
#[test]
fn a_release_is_told_of_what_comes_back_and_a_rollback_of_everything() {
    let released = |settle: fn(&nucleo_runtime::admission::Grant)| {
        let line = Line::new();
        let told = Told::by(&line);
        let (slot, meter) = (gate("slot", 1), Meter::full("meter", 1_000, 0, line.now()));
        settle(&line.admit(both((&slot, ()), (&meter, 400))).unwrap());
        let told = told.all(&line).into_iter();
        told.filter(|it| it.1 == LimiterChange::Released)
            .map(|it| it.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(released(|grant| grant.release()), ["slot"]);
    assert_eq!(released(|grant| grant.rollback()), ["slot", "meter"]);
}
