//! The walk against the plain walk, through the same random histories.
//!
//! Two lines with accounts of their own, made alike, hear the same: arrivals, releases, rollbacks,
//! cancels, the clock, caps and throttles that change, circuits that open and close, an account that
//! cannot be foreseen, memory. Every grant, hold, refusal, event and deadline has to be the same. The
//! one exception: what an event of a withdrawal says of the account's level, for a withdrawal asks
//! nobody and the level is as of the last question.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Arrival, Ask, Line, Ticket};
use crate::admission::account::{
    AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment, Wake,
};
use crate::admission::counting::CountingGate;
use crate::admission::demand::Demand;
use crate::admission::elastic_window::ElasticWindow;
use crate::admission::memory_front::MemorySettings;
use crate::admission::memory_source::ScriptedMemory;
use crate::admission::outbox::{Behind, Outbox};
use crate::admission::token_bucket::{TokenBucket, TokenBudget};
use crate::clock::{Clock, ManualClock, WaitCell};
use crate::error::{JobError, UpstreamFailure};
use crate::events::MessageBus;
use crate::sync::Mutex;
use crate::testing;

/// A gate of a user's own that promises nothing: its size changes without a sign, and it may refuse.
struct Foreign {
    key: AccountKey,
    state: Mutex<ForeignState>,
}

struct ForeignState {
    capacity: usize,
    in_use: usize,
    refuses: bool,
    declines: bool,
}

impl Foreign {
    fn check(&self, mine: &[()], ahead: &[()]) -> Result<bool, JobError> {
        let state = self.state.lock();
        if state.refuses {
            return Err(JobError::uncorrectable("not today"));
        }
        Ok(state.in_use + mine.len() + ahead.len() <= state.capacity)
    }
}

impl RateLimiter for Foreign {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let state = self.state.lock();
        AccountStatus::new(
            AccountCategory::Semaphore,
            state.capacity as u64,
            state.in_use as u64,
        )
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, mine: &[()], ahead: &[()], _: Instant) -> Result<bool, JobError> {
        self.check(mine, ahead)
    }

    fn try_take(&self, mine: &[()], ahead: &[()], _: Instant) -> Result<bool, JobError> {
        if self.state.lock().declines || !self.check(mine, ahead)? {
            return Ok(false);
        }
        self.state.lock().in_use += mine.len();
        Ok(true)
    }

    fn give(&self, amounts: &[()], _: Instant) {
        self.state.lock().in_use -= amounts.len();
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

/// How much of each account a demand asks for; none of it is no entry.
#[derive(Clone, Debug)]
struct Shape {
    gates: [usize; 3],
    tokens: [Vec<u32>; 2],
    window: usize,
    foreign: usize,
    turned: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Arrive(usize),
    /// A demand of its own kind.
    ArriveAs(Shape),
    Release(usize),
    Rollback(usize),
    Cancel(usize),
    Advance(u64),
    Budget(usize, u32, u32),
    Backpressure(usize, u32),
    Success(usize),
    WindowFails,
    WindowAnswers,
    ForeignCapacity(usize),
    ForeignRefuses(bool),
    ForeignDeclines(bool),
    Memory(u64),
    Pass,
}

struct World {
    line: Line,
    plain: bool,
    gates: Vec<Arc<CountingGate>>,
    buckets: Vec<Arc<TokenBucket>>,
    window: Arc<ElasticWindow>,
    foreign: Arc<Foreign>,
    memory: Arc<ScriptedMemory>,
    parked: Vec<(Arc<Ticket>, Arc<Demand>)>,
    granted: Vec<Arc<Demand>>,
    next: Option<Instant>,
    wake: Wake,
}

impl World {
    fn new(plain: bool, gated: bool, start: Instant) -> Self {
        let memory = Arc::new(ScriptedMemory::new(100));
        let settings = gated.then(|| MemorySettings {
            source: memory.clone(),
            progress: true,
        });
        let bucket = |name, tokens, requests| {
            let budget = TokenBudget::new(tokens, requests);
            Arc::new(TokenBucket::new(name, budget, start).unwrap())
        };
        let line = Line::new(settings);
        let growth = line.growth.clone();
        Self {
            line,
            plain,
            gates: (1..=3)
                .map(|size| Arc::new(CountingGate::new(format!("gate-{size}"), size).unwrap()))
                .collect(),
            buckets: vec![bucket("small", 100, 20), bucket("large", 1_000, 6)],
            window: Arc::new(
                ElasticWindow::builder("window", 3, Duration::from_secs(10))
                    .max_throttle_tenths(10)
                    .failures_to_block(2)
                    .initial_cooldown(Duration::from_secs(20))
                    .build()
                    .unwrap(),
            ),
            foreign: Arc::new(Foreign {
                key: AccountKey::new("foreign"),
                state: Mutex::new(ForeignState {
                    capacity: 2,
                    in_use: 0,
                    refuses: false,
                    declines: false,
                }),
            }),
            memory,
            parked: Vec::new(),
            granted: Vec::new(),
            next: None,
            wake: Wake::new(move || growth.note()),
        }
    }

    fn demand(&self, shape: &Shape) -> Demand {
        let mut demand = Demand::new();
        let gates: Vec<_> = self.gates.iter().zip(shape.gates).collect();
        let add_gates = |demand: &mut Demand| {
            for (gate, count) in &gates {
                for _ in 0..*count {
                    demand.add(gate, ());
                }
            }
        };
        if !shape.turned {
            add_gates(&mut demand);
        }
        for (bucket, tokens) in self.buckets.iter().zip(&shape.tokens) {
            for amount in tokens {
                demand.add(bucket, *amount);
            }
        }
        for _ in 0..shape.window {
            demand.add(&self.window, ());
        }
        for _ in 0..shape.foreign {
            demand.add(&self.foreign, ());
        }
        if shape.turned {
            add_gates(&mut demand);
        }
        demand
    }

    /// What happens, as text.
    fn perform(
        &mut self,
        op: &Op,
        shapes: &[Shape],
        now: Instant,
        behind: &Arc<Behind>,
    ) -> Vec<String> {
        let mut out = Outbox::default();
        let mut told = Vec::new();
        match op {
            Op::Arrive(shape) => {
                let shape = &shapes[shape % shapes.len()];
                told.push(self.arrive(shape, now, behind, &mut out));
            }
            Op::ArriveAs(shape) => told.push(self.arrive(shape, now, behind, &mut out)),
            Op::Release(which) => self.settle(*which, false, now, behind, &mut out),
            Op::Rollback(which) => self.settle(*which, true, now, behind, &mut out),
            Op::Cancel(which) => {
                if !self.parked.is_empty() {
                    let (ticket, _) = self.parked.remove(which % self.parked.len());
                    assert!(self.line.withdraw(&ticket, now, &mut out));
                }
            }
            Op::Advance(_) => {}
            Op::Budget(which, tokens, requests) => {
                self.buckets[*which].set_config(TokenBudget::new(*tokens, *requests), now);
            }
            Op::Backpressure(which, count) => {
                self.buckets[*which].record_backpressure(*count, now);
            }
            Op::Success(which) => self.buckets[*which].record_success(now),
            Op::WindowFails => {
                let failure = UpstreamFailure::with_status(503, "window", "busy");
                self.window.on_rate_limit_error(&failure, now);
            }
            Op::WindowAnswers => self.window.on_success(now),
            Op::ForeignCapacity(size) => self.foreign.state.lock().capacity = *size,
            Op::ForeignRefuses(refuses) => self.foreign.state.lock().refuses = *refuses,
            Op::ForeignDeclines(declines) => self.foreign.state.lock().declines = *declines,
            Op::Memory(percent) => self.memory.set(*percent),
            Op::Pass => {}
        }
        let is_due = self.next.is_some_and(|next| next <= now);
        if matches!(op, Op::Pass) || is_due {
            let next = if self.plain {
                self.line.plain_pass(now, &mut out)
            } else {
                self.line.pass(now, &mut out)
            };
            self.next = next.unwrap();
            told.push(format!("next look {:?}", self.next.map(|at| at - now)));
        }
        told.extend(out.told());
        self.collect();
        self.line.check_invariants();
        told.push(format!("{} wait", self.line.len()));
        told
    }

    fn arrive(
        &mut self,
        shape: &Shape,
        now: Instant,
        behind: &Arc<Behind>,
        out: &mut Outbox,
    ) -> String {
        let demand = Arc::new(self.demand(shape));
        if demand.is_empty() {
            return String::new();
        }
        self.line.accounts.claim(1, &self.wake, &demand).unwrap();
        let ask = Ask {
            demand: Arc::clone(&demand),
            behind: Some(Arc::clone(behind)),
            cell: WaitCell::new(),
        };
        match self.line.arrive(ask, now, out).unwrap() {
            Arrival::Granted => {
                self.granted.push(demand);
                "granted".to_owned()
            }
            Arrival::Refused(error) => format!("refused: {error}"),
            Arrival::Parked(ticket) => {
                self.parked.push((ticket, demand));
                "parked".to_owned()
            }
        }
    }

    fn settle(
        &mut self,
        which: usize,
        metered_too: bool,
        now: Instant,
        behind: &Arc<Behind>,
        out: &mut Outbox,
    ) {
        if self.granted.is_empty() {
            return;
        }
        let demand = self.granted.remove(which % self.granted.len());
        self.line.finish(now, out);
        self.line
            .give_back(
                &demand,
                0..demand.len(),
                metered_too,
                Some(behind),
                now,
                out,
            )
            .unwrap();
    }

    /// Moves those that have a verdict out of the parked.
    fn collect(&mut self) {
        let granted = &mut self.granted;
        self.parked.retain(|(ticket, demand)| {
            let Some(verdict) = self.line.verdict_of(ticket) else {
                return true;
            };
            if verdict {
                granted.push(Arc::clone(demand));
            }
            false
        });
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let few = prop_oneof![4 => Just(0_usize), 3 => Just(1_usize), 1 => Just(2_usize)];
    let tokens = |most: u32| {
        prop_oneof![
            3 => Just(Vec::new()),
            3 => prop::collection::vec(1..most, 1..=2),
        ]
    };
    (
        [few.clone(), few.clone(), few.clone()],
        (tokens(60), tokens(600)),
        prop_oneof![5 => Just(0_usize), 1 => Just(1_usize)],
        prop_oneof![7 => Just(0_usize), 1 => Just(1_usize)],
        any::<bool>(),
    )
        .prop_map(|(gates, (small, large), window, foreign, turned)| Shape {
            gates,
            tokens: [small, large],
            window,
            foreign,
            turned,
        })
}

/// As much, but everyone needs the one permit of the first gate.
fn shape_behind_one_gate() -> impl Strategy<Value = Shape> {
    shape().prop_map(|shape| Shape {
        gates: [1, shape.gates[1], shape.gates[2]],
        foreign: 0,
        ..shape
    })
}

/// The one permit of the first gate, and few or all tokens of the small bucket; a few go past the
/// gate. So that who was granted, who is the head and what is left matter to those whom the bucket
/// has not held.
fn shape_of_gate_and_bucket() -> impl Strategy<Value = Shape> {
    let amounts = prop::sample::select(vec![1_u32, 2, 50, 97, 98, 100]);
    let permits = prop_oneof![6 => Just(1_usize), 1 => Just(0_usize)];
    (
        permits,
        prop::collection::vec(amounts, 0..=2),
        any::<bool>(),
    )
        .prop_map(|(permits, tokens, turned)| Shape {
            gates: [permits, 0, 0],
            tokens: [tokens, Vec::new()],
            window: 0,
            foreign: 0,
            turned,
        })
}

fn op(shape: impl Strategy<Value = Shape> + 'static) -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0..6_usize).prop_map(Op::Arrive),
        4 => shape.prop_map(Op::ArriveAs),
        10 => (0..9_usize).prop_map(Op::Release),
        2 => (0..9_usize).prop_map(Op::Rollback),
        3 => (0..9_usize).prop_map(Op::Cancel),
        8 => (1..20_000_u64).prop_map(Op::Advance),
        1 => (0..2_usize, 20..200_u32, 2..30_u32).prop_map(|(a, b, c)| Op::Budget(a, b, c)),
        1 => (0..2_usize, 1..4_u32).prop_map(|(a, b)| Op::Backpressure(a, b)),
        1 => (0..2_usize).prop_map(Op::Success),
        2 => Just(Op::WindowFails),
        1 => Just(Op::WindowAnswers),
        1 => (0..4_usize).prop_map(Op::ForeignCapacity),
        1 => any::<bool>().prop_map(Op::ForeignRefuses),
        1 => any::<bool>().prop_map(Op::ForeignDeclines),
        2 => (70..100_u64).prop_map(Op::Memory),
        12 => Just(Op::Pass),
    ]
}

/// How many histories are tried; more with `NUCLEO_HISTORIES` times as many.
fn times(cases: u32) -> u32 {
    let factor = std::env::var("NUCLEO_HISTORIES").ok();
    cases * factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Both worlds through one history; fails at the first difference.
fn compare(gated: bool, shapes: &[Shape], ops: &[Op]) -> Result<(), TestCaseError> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let start = Instant::now();
    let mut now = start;
    let mut walked = World::new(false, gated, start);
    let mut plain = World::new(true, gated, start);
    for (step, op) in ops.iter().enumerate() {
        if let Op::Advance(millis) = op {
            now += Duration::from_millis(*millis);
        }
        let context = testing::context(&clock, &bus, &format!("u{step}"), None).unwrap();
        let job = context.core();
        let behind = Arc::new(Behind {
            telling: Arc::clone(job.telling()),
            snapshot: job.snapshot(),
        });
        let by_walk = walked.perform(op, shapes, now, &behind);
        let by_plain = plain.perform(op, shapes, now, &behind);
        prop_assert_eq!(by_walk, by_plain, "at step {} {:?}", step, op);
    }
    Ok(())
}

fn histories<S: Strategy<Value = Shape> + 'static>(
    cases: u32,
    length: usize,
    shape: fn() -> S,
) -> impl Fn(bool) {
    move |gated| {
        let config = ProptestConfig {
            cases: times(cases),
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let strategy = (
            prop::collection::vec(shape(), 1..6),
            prop::collection::vec(op(shape()), 1..length),
        );
        proptest!(config, |((shapes, ops) in strategy)| {
            compare(gated, &shapes, &ops)?;
        });
    }
}

#[test]
fn every_history_ends_the_same_as_with_the_walk_that_asks_everyone() {
    histories(500, 60, shape)(false);
}

#[test]
fn every_history_under_a_memory_gate_ends_the_same() {
    histories(400, 60, shape)(true);
}

#[test]
fn a_long_line_of_few_kinds_ends_the_same() {
    histories(24, 600, shape)(false);
}

#[test]
fn a_line_behind_one_gate_ends_the_same() {
    histories(500, 60, shape_behind_one_gate)(false);
    histories(100, 60, shape_behind_one_gate)(true);
    histories(24, 300, shape_behind_one_gate)(false);
}

#[test]
fn a_line_behind_one_gate_and_a_bucket_ends_the_same() {
    histories(700, 90, shape_of_gate_and_bucket)(false);
}

#[test]
fn what_fitted_many_times_before_a_budget_was_cut_is_asked_again() {
    let nothing = Shape {
        gates: [1, 0, 0],
        tokens: [Vec::new(), Vec::new()],
        window: 0,
        foreign: 0,
        turned: false,
    };
    let a_token = Shape {
        tokens: [vec![1], Vec::new()],
        ..nothing.clone()
    };
    let elsewhere = Shape {
        gates: [0, 2, 0],
        ..nothing.clone()
    };
    let arrivals = [2, 0, 0, 1, 1, 1, 1].map(Op::Arrive);
    let mut ops = Vec::from(arrivals);
    // Until it is known that a token fits for many of them.
    ops.extend([Op::Pass, Op::Pass, Op::Pass, Op::Pass]);
    // Somebody is there who does not need the gate, so that the groups are looked at.
    ops.extend([
        Op::Arrive(2),
        Op::Budget(0, 100, 2),
        Op::Pass,
        Op::Cancel(5),
    ]);
    // The first that draws on the bucket leaves one request, so that it holds those behind the head.
    ops.extend([Op::Release(1), Op::Pass, Op::Release(1), Op::Pass]);
    compare(false, &[nothing, a_token, elsewhere], &ops).unwrap();
}

#[test]
fn a_grant_that_memory_paces_holds_those_behind_it() {
    let tokens = Shape {
        gates: [0, 0, 0],
        tokens: [vec![37, 50], Vec::new()],
        window: 0,
        foreign: 0,
        turned: false,
    };
    let gates = Shape {
        gates: [2, 0, 0],
        tokens: [Vec::new(), Vec::new()],
        ..tokens.clone()
    };
    let ops = [
        Op::Arrive(0),
        Op::Backpressure(0, 1),
        Op::Arrive(0),
        Op::Arrive(0),
        Op::Pass,
        Op::Memory(95),
        Op::ArriveAs(gates),
        Op::Release(0),
        Op::Arrive(0),
        Op::Advance(12_260),
        Op::Advance(17_740),
        Op::Pass,
    ];
    compare(true, &[tokens], &ops).unwrap();
}
