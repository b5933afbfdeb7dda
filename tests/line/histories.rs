//! ADM-13: what holds after every step of random histories, judged by the accounts themselves.
//!
//! The line is stepped by hand. After each step it is asked of the accounts, and not of the line,
//! who fits: so nobody who waits may fit beside the head, nobody behind the head may have been granted on
//! what the head is short of, and every account has out what the granted hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nucleo_runtime::UpstreamFailure;
use nucleo_runtime::admission::{
    CountingGate, Demand, ElasticWindow, RateLimiter, TokenBucket, TokenBudget,
};
use nucleo_runtime::events::{LimiterChange, RejectReason};
use nucleo_runtime::testing::{self, SteppedLine};
use proptest::prelude::*;

use super::cases::gate;
use super::foreign::Foreign;
use super::line::{Line, Meter, of};
use super::told::Told;

/// How much of each account a demand asks for; none of it is no entry.
#[derive(Clone, Debug)]
struct Shape {
    gates: [usize; 4],
    tokens: [u32; 2],
    units: u64,
    window: usize,
    foreign: usize,
}

#[derive(Clone, Debug)]
enum Op {
    Arrive(Shape),
    Release(usize),
    Rollback(usize),
    Withdraw(usize),
    Advance(u64),
    ToTheNextInstant,
    Budget(usize, u32, u32),
    Backpressure(usize),
    Success(usize),
    WindowFails,
    WindowAnswers,
    Foreign(usize, bool, bool),
}

struct Accounts {
    gates: Vec<Arc<CountingGate>>,
    buckets: Vec<Arc<TokenBucket>>,
    meter: Arc<Meter>,
    window: Arc<ElasticWindow>,
    foreign: Arc<Foreign>,
}

const UNITS: u64 = 50;
const REQUESTS: u32 = 3;

impl Accounts {
    fn new(now: Instant) -> Self {
        let bucket = |name, tokens, requests| {
            let budget = TokenBudget::new(tokens, requests);
            Arc::new(TokenBucket::new(name, budget, now).unwrap())
        };
        Self {
            gates: (1..=4)
                .map(|size| gate(&format!("gate-{size}"), size))
                .collect(),
            buckets: vec![bucket("small", 100, 20), bucket("large", 1_000, 6)],
            meter: Meter::full("meter", UNITS, 7, now),
            window: Arc::new(
                ElasticWindow::builder("window", REQUESTS, Duration::from_secs(10))
                    .max_throttle_tenths(10)
                    .failures_to_block(2)
                    .initial_cooldown(Duration::from_secs(20))
                    .build()
                    .unwrap(),
            ),
            foreign: Foreign::new("foreign", 2),
        }
    }

    fn demand(&self, shape: &Shape) -> Demand {
        let mut demand = Demand::new();
        for (gate, count) in self.gates.iter().zip(shape.gates) {
            (0..count).for_each(|_| demand.add(gate, ()));
        }
        for (bucket, tokens) in self.buckets.iter().zip(shape.tokens) {
            if tokens > 0 {
                demand.add(bucket, tokens);
            }
        }
        if shape.units > 0 {
            demand.add(&self.meter, shape.units);
        }
        (0..shape.window).for_each(|_| demand.add(&self.window, ()));
        (0..shape.foreign).for_each(|_| demand.add(&self.foreign, ()));
        demand
    }

    /// By account: whether `mine` is asked there, and whether it fits beside `head`. An account that
    /// refuses or declines serves nobody.
    fn answers(&self, mine: &Shape, head: Option<&Shape>, now: Instant) -> Vec<(bool, bool)> {
        let permits = |count: usize| vec![(); count];
        let mut answers = Vec::new();
        for (index, gate) in self.gates.iter().enumerate() {
            let ahead = permits(head.map_or(0, |it| it.gates[index]));
            let mine = permits(mine.gates[index]);
            let fits = gate.fits(&mine, &ahead, now).unwrap_or(false);
            answers.push((!mine.is_empty(), fits));
        }
        let tokens = |amount: u32| (amount > 0).then_some(amount).into_iter().collect();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let ahead: Vec<_> = tokens(head.map_or(0, |it| it.tokens[index]));
            let mine: Vec<_> = tokens(mine.tokens[index]);
            let fits = bucket.fits(&mine, &ahead, now).unwrap_or(false);
            answers.push((!mine.is_empty(), fits));
        }
        let units = [mine.units];
        let ahead = [head.map_or(0, |it| it.units)];
        let fits = self.meter.fits(&units, &ahead, now).unwrap_or(false);
        answers.push((mine.units > 0, fits));
        let ahead = permits(head.map_or(0, |it| it.window));
        let fits = self.window.fits(&permits(mine.window), &ahead, now);
        answers.push((mine.window > 0, fits.unwrap_or(false)));
        let ahead = permits(head.map_or(0, |it| it.foreign));
        let fits = self.foreign.fits(&permits(mine.foreign), &ahead, now);
        let serves = fits.unwrap_or(false) && !self.foreign.declines();
        answers.push((mine.foreign > 0, serves));
        answers
    }

    fn fits(&self, mine: &Shape, head: Option<&Shape>, now: Instant) -> bool {
        let answers = self.answers(mine, head, now);
        answers.iter().all(|(is_asked, fits)| !is_asked || *fits)
    }
}

struct History {
    accounts: Accounts,
    line: SteppedLine,
    now: Instant,
    next: Option<Instant>,
    /// By place, from 1. A refused arrival has a place as well.
    shapes: Vec<Shape>,
    ended: usize,
    granted: usize,
}

impl History {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            accounts: Accounts::new(now),
            line: SteppedLine::new(),
            now,
            next: None,
            shapes: Vec::new(),
            ended: 0,
            granted: 0,
        }
    }

    fn shape(&self, place: u64) -> &Shape {
        &self.shapes[place as usize - 1]
    }

    fn places(&self) -> impl Iterator<Item = u64> {
        1..=self.shapes.len() as u64
    }

    fn waiting(&self) -> Vec<u64> {
        self.places().filter(|it| self.line.waits(*it)).collect()
    }

    fn holding(&self) -> Vec<u64> {
        self.places().filter(|it| self.line.holds(*it)).collect()
    }

    fn perform(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = self.now;
        let chosen = |places: Vec<u64>, which: usize| {
            let index = which % places.len().max(1);
            places.get(index).copied()
        };
        match op {
            Op::Arrive(shape) => self.arrive(shape)?,
            Op::Release(which) => {
                if let Some(place) = chosen(self.holding(), *which) {
                    self.line.release(place, now).unwrap();
                }
            }
            Op::Rollback(which) => {
                if let Some(place) = chosen(self.holding(), *which) {
                    self.line.rollback(place, now).unwrap();
                }
            }
            Op::Withdraw(which) => {
                if let Some(place) = chosen(self.waiting(), *which) {
                    prop_assert!(self.line.withdraw(place, now));
                    self.ended += 1;
                }
            }
            Op::Advance(millis) => self.now += Duration::from_millis(*millis),
            Op::ToTheNextInstant => self.go_to_the_next_instant()?,
            Op::Budget(which, tokens, requests) => {
                let budget = TokenBudget::new(*tokens, *requests);
                self.accounts.buckets[*which].set_config(budget, now);
            }
            Op::Backpressure(which) => self.accounts.buckets[*which].record_backpressure(1, now),
            Op::Success(which) => self.accounts.buckets[*which].record_success(now),
            Op::WindowFails => {
                let failure = UpstreamFailure::with_status(503, "window", "busy");
                self.accounts.window.on_rate_limit_error(&failure, now);
            }
            Op::WindowAnswers => self.accounts.window.on_success(now),
            Op::Foreign(capacity, refuses, declines) => {
                self.accounts.foreign.set(*capacity, *refuses, *declines);
            }
        }
        self.expect_nothing_overdrawn()?;
        self.walk()
    }

    fn arrive(&mut self, shape: &Shape) -> Result<(), TestCaseError> {
        let demand = self.accounts.demand(shape);
        if demand.is_empty() {
            return Ok(());
        }
        self.shapes.push(shape.clone());
        match self.line.arrive(demand, self.now) {
            Ok(place) => {
                prop_assert_eq!(place, self.shapes.len() as u64);
                if self.line.holds(place) {
                    self.granted += 1;
                    self.ended += 1;
                    self.expect_no_overtaking(&[place])?;
                } else {
                    // The line was walked after the last change, so what does not wait for an
                    // instant that has come was looked at, and found short.
                    prop_assert!(self.line.waits(place));
                    let is_due = self.next.is_some_and(|next| next <= self.now);
                    let head = self.waiting()[0];
                    let ahead = (head != place).then(|| self.shape(head));
                    prop_assert!(
                        is_due || !self.accounts.fits(shape, ahead, self.now),
                        "{} fits at its arrival, and waits",
                        place
                    );
                }
            }
            Err(_) => self.ended += 1,
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<(), TestCaseError> {
        let before = self.waiting();
        let walked = self.line.walk(self.now).unwrap().clone();
        self.next = walked.next;
        self.granted += walked.granted.len();
        self.ended += walked.granted.len() + walked.refused.len();
        let refused: Vec<_> = walked.refused.iter().map(|(place, _)| *place).collect();
        for place in walked.granted.iter().chain(&refused) {
            prop_assert!(before.contains(place), "{} was answered twice", place);
            prop_assert!(!self.line.waits(*place));
        }
        self.expect_no_overtaking(&walked.granted)?;
        self.expect_nothing_overdrawn()?;
        prop_assert_eq!(self.line.len(), self.waiting().len());
        prop_assert_eq!(self.ended + self.line.len(), self.shapes.len());
        self.expect_nobody_fits(self.now)
    }

    /// No lost wake-up: whoever still waits is short, alone or beside the head.
    fn expect_nobody_fits(&self, now: Instant) -> Result<(), TestCaseError> {
        let waiting = self.waiting();
        let Some(head) = waiting.first() else {
            return Ok(());
        };
        for place in &waiting {
            let ahead = (place != head).then(|| self.shape(*head));
            prop_assert!(
                !self.accounts.fits(self.shape(*place), ahead, now),
                "{} fits behind {} {:?} from now and waits, the next look is {:?} from now",
                place,
                head,
                now - self.now,
                self.next.map(|next| next - self.now)
            );
        }
        Ok(())
    }

    /// Until the instant that the walk named the clock alone lets nobody go.
    fn go_to_the_next_instant(&mut self) -> Result<(), TestCaseError> {
        let Some(next) = self.next else {
            // Only an event can help.
            let later = self.now + Duration::from_secs(86_400);
            return self.expect_nobody_fits(later);
        };
        let until = next.saturating_duration_since(self.now);
        self.expect_nobody_fits(self.now + until / 2)?;
        self.expect_nobody_fits(self.now + until.saturating_sub(Duration::from_nanos(1)))?;
        self.now = self.now.max(next);
        Ok(())
    }

    /// Nobody behind the head was granted on what the head is short of.
    fn expect_no_overtaking(&self, granted: &[u64]) -> Result<(), TestCaseError> {
        let Some(head) = self.waiting().first().copied() else {
            return Ok(());
        };
        let of_head = self.accounts.answers(self.shape(head), None, self.now);
        for place in granted.iter().filter(|place| **place > head) {
            let theirs = self.accounts.answers(self.shape(*place), None, self.now);
            for (index, ((is_needed, fits), (is_taken, _))) in
                of_head.iter().zip(&theirs).enumerate()
            {
                prop_assert!(
                    *fits || !(*is_needed && *is_taken),
                    "{} overtook {} on account {}",
                    place,
                    head,
                    index
                );
            }
        }
        Ok(())
    }

    fn expect_nothing_overdrawn(&self) -> Result<(), TestCaseError> {
        let holding = self.holding();
        let held = |count: fn(&Shape, usize) -> usize, index| {
            holding
                .iter()
                .map(|place| count(self.shape(*place), index))
                .sum::<usize>()
        };
        for (index, gate) in self.accounts.gates.iter().enumerate() {
            let out = held(|shape, index| shape.gates[index], index);
            prop_assert_eq!(gate.in_use() as usize, out, "{} is not whole", gate.name());
            prop_assert!(gate.in_use() <= gate.capacity());
        }
        let out = held(|shape, _| shape.foreign, 0);
        prop_assert_eq!(self.accounts.foreign.in_use(), out);
        prop_assert!(self.accounts.meter.level(self.now) <= UNITS);
        for bucket in &self.accounts.buckets {
            let status = bucket.status(self.now);
            prop_assert!(status.tokens <= status.budget.tokens_per_minute);
            prop_assert!(status.requests <= status.budget.requests_per_minute);
        }
        let window = self.accounts.window.status(self.now);
        prop_assert!(window.available <= window.max_requests);
        Ok(())
    }

    /// Everything comes back and the clock goes on: then nobody is left.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.accounts.foreign.set(2, false, false);
        self.accounts.window.on_success(self.now);
        let mut steps = 0;
        while !self.line.is_empty() || !self.holding().is_empty() {
            for place in self.holding() {
                self.line.release(place, self.now).unwrap();
            }
            self.walk()?;
            if self.holding().is_empty() {
                self.go_to_the_next_instant()?;
                self.walk()?;
            }
            steps += 1;
            prop_assert!(steps < 2_000, "{} wait for ever", self.line.len());
        }
        prop_assert_eq!(self.ended, self.shapes.len());
        self.expect_nothing_overdrawn()
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let up_to = |most: usize| prop_oneof![2 => Just(0), 1 => 1..=most];
    (
        [up_to(1), up_to(2), up_to(3), up_to(4)],
        [
            prop_oneof![2 => Just(0), 1 => 1..60_u32],
            prop_oneof![2 => Just(0), 1 => 1..600_u32],
        ],
        prop_oneof![2 => Just(0), 1 => 1..=UNITS],
        prop_oneof![5 => Just(0_usize), 1 => Just(1_usize)],
        prop_oneof![5 => Just(0_usize), 1 => 1..=2_usize],
    )
        .prop_map(|(gates, tokens, units, window, foreign)| Shape {
            gates,
            tokens,
            units,
            window,
            foreign,
        })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => shape().prop_map(Op::Arrive),
        8 => (0..9_usize).prop_map(Op::Release),
        2 => (0..9_usize).prop_map(Op::Rollback),
        2 => (0..9_usize).prop_map(Op::Withdraw),
        4 => (1..20_000_u64).prop_map(Op::Advance),
        4 => Just(Op::ToTheNextInstant),
        1 => (0..2_usize, 60..200_u32, 2..30_u32).prop_map(|(a, b, c)| Op::Budget(a, b, c)),
        1 => (0..2_usize).prop_map(Op::Backpressure),
        1 => (0..2_usize).prop_map(Op::Success),
        1 => Just(Op::WindowFails),
        1 => Just(Op::WindowAnswers),
        1 => (0..4_usize, any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Op::Foreign(a, b, c)),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn after_every_step_nothing_is_overdrawn_nobody_overtaken_and_nobody_forgotten() {
    let ops = prop::collection::vec(op(), 1..80);
    proptest!(config(300), |(ops in ops)| {
        let mut history = History::new();
        for op in &ops {
            history.perform(op)?;
        }
        history.end()?;
    });
}

/// How each of those who wait on one permit leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Granted,
    Cancelled,
    Stopped,
}

#[test]
fn as_many_leave_an_account_as_it_held() {
    let leaves = prop_oneof![
        3 => Just(Leaves::Granted),
        2 => Just(Leaves::Cancelled),
        1 => Just(Leaves::Stopped),
    ];
    let all = prop::collection::vec(leaves, 1..8);
    proptest!(config(40), |(all in all)| {
        let line = Line::new();
        let told = Told::by(&line);
        let slots = gate("slots", 1);
        let holder = line.admit(of(&slots, ())).unwrap();
        // Whoever is to meet the stop stands behind the others.
        let mut ways = all.clone();
        ways.sort_by_key(|leaves| matches!(leaves, Leaves::Stopped));
        let asking: Vec<_> = ways
            .iter()
            .map(|leaves| (*leaves, line.ask(of(&slots, ()))))
            .collect();
        let mut held = Some(holder);
        let mut stopped = Vec::new();
        for (leaves, asking) in asking {
            match leaves {
                Leaves::Granted => {
                    drop(held.take());
                    held = Some(asking.granted());
                }
                Leaves::Cancelled => {
                    testing::cancel(&asking.context, "not needed");
                    prop_assert!(asking.answer().unwrap_err().is_cancelled());
                }
                Leaves::Stopped => stopped.push(asking),
            }
        }
        line.bench.stop();
        for asking in stopped {
            prop_assert!(asking.answer().unwrap_err().is_cancelled());
        }
        drop(held);
        let all_told = told.all(&line);
        let count = |change| all_told.iter().filter(|it| it.1 == change).count();
        prop_assert_eq!(count(LimiterChange::Held), all.len());
        let rejected = count(LimiterChange::Rejected);
        prop_assert_eq!(count(LimiterChange::GrantedFromHold) + rejected, all.len());
        let cancelled = all_told
            .iter()
            .filter(|it| it.2 == Some(RejectReason::Cancelled));
        let expected = all.iter().filter(|it| matches!(it, Leaves::Cancelled));
        prop_assert_eq!(cancelled.count(), expected.count());
        let last_left = all_told.iter().rfind(|it| it.1 != LimiterChange::Released);
        prop_assert_eq!(last_left.map(|it| it.3), Some(0));
        prop_assert_eq!(slots.in_use(), 0);
    });
}
