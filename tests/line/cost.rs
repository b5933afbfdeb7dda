//! What the line costs, in questions to a counting account; and fairness under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use nucleo_runtime::JobError;
use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, Demand, RateLimiter, Replenishment,
};
use nucleo_runtime::testing::SteppedLine;

use super::line::{both, of};

/// A gate of weighted permits that counts what it is asked. It keeps the promises of a revision, as
/// the shipped gates do.
struct Counting {
    key: AccountKey,
    capacity: u64,
    in_use: AtomicU64,
    asked: AtomicUsize,
}

impl Counting {
    fn new(name: &str, capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            key: AccountKey::new(name),
            capacity,
            in_use: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
        })
    }

    /// How often it was asked since the last time.
    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }

    fn has(&self, mine: &[u64], ahead: &[u64]) -> Result<bool, JobError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let wanted: u64 = mine.iter().sum();
        if wanted > self.capacity {
            return Err(JobError::uncorrectable(format!(
                "{wanted} of {} can never fit",
                self.capacity
            )));
        }
        let set_aside: u64 = ahead.iter().sum();
        Ok(self.in_use.load(Ordering::SeqCst) + wanted + set_aside <= self.capacity)
    }
}

impl RateLimiter for Counting {
    type Amount = u64;

    fn account_for(&self, _: &u64) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let in_use = self.in_use.load(Ordering::SeqCst);
        AccountStatus::new(AccountCategory::Semaphore, self.capacity, in_use)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, mine: &[u64], ahead: &[u64], _: Instant) -> Result<bool, JobError> {
        self.has(mine, ahead)
    }

    fn try_take(&self, mine: &[u64], ahead: &[u64], _: Instant) -> Result<bool, JobError> {
        let fits = self.has(mine, ahead)?;
        if fits {
            self.in_use.fetch_add(mine.iter().sum(), Ordering::SeqCst);
        }
        Ok(fits)
    }

    fn give(&self, amounts: &[u64], _: Instant) {
        self.in_use
            .fetch_sub(amounts.iter().sum(), Ordering::SeqCst);
    }

    fn earliest_fit(&self, _: &[u64], _: &[u64], _: Instant) -> Option<Instant> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        None
    }

    fn revision(&self) -> Option<u64> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Some(0)
    }

    /// It never changes.
    fn announces_revisions(&self) -> bool {
        true
    }

    fn units(&self, amount: &u64) -> u64 {
        *amount
    }
}

const MANY: usize = 10_000;
/// A grant asks before it takes, and a walk that ends closed asks for the head once more, and for
/// whatever shows that nobody behind it passes.
const PER_GRANT: usize = 10;

/// Arrives, and answers the places.
fn arrive(line: &mut SteppedLine, demands: impl Iterator<Item = Demand>, now: Instant) -> Vec<u64> {
    demands.map(|it| line.arrive(it, now).unwrap()).collect()
}

/// Releases the first in line of those that hold something until nobody waits. Answers the order
/// of the grants.
fn drain(line: &mut SteppedLine, mut holding: Vec<u64>, now: Instant) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(place) = holding.pop() {
        line.release(place, now).unwrap();
        let granted = line.walk(now).unwrap().granted.clone();
        order.extend_from_slice(&granted);
        holding.extend(granted);
    }
    assert!(line.is_empty());
    order
}

#[test]
fn draining_ten_thousand_equal_waiters_asks_for_each_grant_and_no_more() {
    let now = Instant::now();
    let gate = Counting::new("gate", 1);
    let mut line = SteppedLine::new();
    let holder = line.arrive(of(&gate, 1), now).unwrap();
    let places = arrive(&mut line, (0..MANY).map(|_| of(&gate, 1)), now);
    let at_arrival = gate.asked();
    assert!(
        at_arrival <= MANY * PER_GRANT,
        "{at_arrival} at the arrivals"
    );
    assert_eq!(drain(&mut line, vec![holder], now), places);
    let asked = gate.asked();
    assert!(asked <= MANY * PER_GRANT, "{asked} questions");
}

#[test]
fn draining_ten_thousand_kinds_asks_for_each_grant_and_no_more() {
    let now = Instant::now();
    let most = MANY as u64;
    let gate = Counting::new("gate", most);
    let mut line = SteppedLine::new();
    let holder = line.arrive(of(&gate, most), now).unwrap();
    // Each more than half, so that one goes at a time; no two alike.
    let kinds = (0..most).map(|kind| of(&gate, most / 2 + 1 + (kind * 7_919) % (most / 2)));
    let places = arrive(&mut line, kinds, now);
    gate.asked();
    assert_eq!(drain(&mut line, vec![holder], now), places);
    let asked = gate.asked();
    assert!(asked <= MANY * PER_GRANT, "{asked} questions");
}

#[test]
fn ten_thousand_cancels_are_not_quadratic() {
    let now = Instant::now();
    let gate = Counting::new("gate", 1);
    let mut line = SteppedLine::new();
    let holder = line.arrive(of(&gate, 1), now).unwrap();
    let places = arrive(&mut line, (0..MANY).map(|_| of(&gate, 1)), now);
    gate.asked();
    // The head each time: the worst for whoever keeps a place for it.
    for place in &places[..MANY - 1] {
        assert!(line.withdraw(*place, now));
        assert!(!line.withdraw(*place, now));
        assert!(line.walk(now).unwrap().granted.is_empty());
    }
    let asked = gate.asked();
    assert!(asked <= MANY * PER_GRANT, "{asked} questions");
    assert_eq!(drain(&mut line, vec![holder], now), [places[MANY - 1]]);
    assert_eq!(gate.in_use.load(Ordering::SeqCst), 0);
}

#[test]
fn cancels_of_ten_thousand_kinds_are_not_quadratic() {
    let now = Instant::now();
    let most = MANY as u64;
    let gate = Counting::new("gate", most);
    let mut line = SteppedLine::new();
    line.arrive(of(&gate, most), now).unwrap();
    let places = arrive(&mut line, (1..=most).map(|kind| of(&gate, kind)), now);
    gate.asked();
    for place in places.iter().rev() {
        assert!(line.withdraw(*place, now));
        assert!(line.walk(now).unwrap().granted.is_empty());
    }
    let asked = gate.asked();
    assert!(asked <= MANY * PER_GRANT, "{asked} questions");
    assert!(line.is_empty());
}

#[test]
fn whoever_needs_nothing_of_a_blocked_head_passes_at_the_first_look() {
    let now = Instant::now();
    let (blocked, other) = (Counting::new("blocked", 1), Counting::new("other", 1));
    let mut line = SteppedLine::new();
    line.arrive(of(&blocked, 1), now).unwrap();
    arrive(&mut line, (0..MANY).map(|_| of(&blocked, 1)), now);
    blocked.asked();
    let passes = line.arrive(of(&other, 1), now).unwrap();
    assert!(line.holds(passes));
    let waits = line.arrive(both((&other, 1), (&blocked, 1)), now).unwrap();
    let also = line.arrive(of(&other, 1), now).unwrap();
    assert!(!line.holds(waits) && !line.holds(also));
    other.asked();
    blocked.asked();
    // Behind one that waits for both, but the reservation is the head's alone.
    line.release(passes, now).unwrap();
    assert_eq!(line.walk(now).unwrap().granted, [also]);
    let asked = other.asked() + blocked.asked();
    assert!(asked <= 4 * PER_GRANT, "{asked} questions for one grant");
}

#[test]
fn a_heavy_demand_is_not_starved_by_thousands_of_small_ones() {
    let now = Instant::now();
    let gate = Counting::new("gate", 8);
    let mut line = SteppedLine::new();
    let mut holding = arrive(&mut line, (0..8).map(|_| of(&gate, 1)), now);
    let heavy = line.arrive(of(&gate, 8), now).unwrap();
    let mut arrived = Vec::new();
    let mut releases = 0;
    // A stream of small ones that never ends: two come for each that goes.
    while !line.holds(heavy) {
        arrived.extend(arrive(&mut line, (0..500).map(|_| of(&gate, 1)), now));
        let place = holding.pop().expect("nobody runs, and the heavy one waits");
        line.release(place, now).unwrap();
        releases += 1;
        let granted = line.walk(now).unwrap().granted.clone();
        assert!(granted.is_empty() || granted == [heavy], "{granted:?}");
    }
    assert_eq!(releases, 8, "it goes once those before it are gone");
    assert_eq!(arrived.len(), 4_000);
    let order = drain(&mut line, vec![heavy], now);
    assert_eq!(order, arrived, "and then the small ones, as they came");
    assert_eq!(gate.in_use.load(Ordering::SeqCst), 0);
}

#[test]
fn a_thousand_sets_granted_by_one_release_are_not_quadratic() {
    const SETS: u64 = 1_000;
    let now = Instant::now();
    let (blocked, common) = (Counting::new("blocked", 1), Counting::new("common", SETS));
    let owns: Vec<_> = (0..SETS)
        .map(|set| Counting::new(&format!("own-{set}"), 1))
        .collect();
    let mut line = SteppedLine::new();
    line.arrive(of(&blocked, 1), now).unwrap();
    let holder = line.arrive(of(&common, SETS), now).unwrap();
    let head = line.arrive(of(&blocked, 1), now).unwrap();
    let demands = owns.iter().map(|own| both((own, 1), (&common, 1)));
    let places = arrive(&mut line, demands, now);
    let asked = || common.asked() + owns.iter().map(|own| own.asked()).sum::<usize>();
    asked();
    line.release(holder, now).unwrap();
    assert_eq!(line.walk(now).unwrap().granted, places);
    assert!(line.waits(head));
    let asked = asked();
    assert!(
        asked <= 2 * PER_GRANT * SETS as usize,
        "{asked} questions for {SETS} grants"
    );
}

#[test]
fn draining_a_thousand_sets_one_by_one_does_not_ask_them_all_at_each_release() {
    const SETS: usize = 1_000;
    let now = Instant::now();
    let gate = Counting::new("gate", 1);
    let owns: Vec<_> = (0..SETS)
        .map(|set| Counting::new(&format!("own-{set}"), 1))
        .collect();
    let mut line = SteppedLine::new();
    let holder = line.arrive(of(&gate, 1), now).unwrap();
    let demands = owns.iter().map(|own| both((own, 1), (&gate, 1)));
    let places = arrive(&mut line, demands, now);
    let asked = || gate.asked() + owns.iter().map(|own| own.asked()).sum::<usize>();
    asked();
    assert_eq!(drain(&mut line, vec![holder], now), places);
    let asked = asked();
    assert!(
        asked <= 2 * PER_GRANT * SETS,
        "{asked} questions for {SETS} grants"
    );
}
