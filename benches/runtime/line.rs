//! B4: the line alone, 10 000 waiters draining through a gate of 8.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use nucleo_runtime::admission::{CountingGate, Demand, TokenBucket, TokenBudget};
use nucleo_runtime::testing::SteppedLine;

use crate::Effort;
use crate::report::{Reach, Row, median};

const WAITERS: usize = 10_000;
const PERMITS: u32 = 8;
/// Accounts beside the gate that a demand of the mixed sets may name: 16 sets.
const OTHERS: usize = 4;

#[derive(Clone, Copy)]
enum Mix {
    OneShape,
    ManyShapes,
    MixedSets,
}

/// What a waiter asks for beside its permit.
#[derive(Clone, Default)]
struct Ask {
    tokens: u32,
    others: [bool; OTHERS],
}

fn asks(mix: Mix) -> Vec<Ask> {
    (0..WAITERS)
        .map(|waiter| match mix {
            Mix::OneShape => Ask::default(),
            // Each amount once, in no order.
            Mix::ManyShapes => Ask {
                tokens: 1 + ((waiter * 7_919) % WAITERS) as u32,
                ..Ask::default()
            },
            Mix::MixedSets => Ask {
                tokens: 0,
                others: std::array::from_fn(|other| (waiter * 11) >> other & 1 == 1),
            },
        })
        .collect()
}

struct Accounts {
    gate: Arc<CountingGate>,
    bucket: Arc<TokenBucket>,
    others: Vec<Arc<CountingGate>>,
}

impl Accounts {
    fn new(now: Instant) -> Self {
        let gate = |name: String, size| Arc::new(CountingGate::new(name, size).unwrap());
        let budget = TokenBudget::new(u32::MAX, u32::MAX);
        Self {
            gate: gate("gate".into(), PERMITS),
            bucket: Arc::new(TokenBucket::new("bucket", budget, now).unwrap()),
            others: (0..OTHERS)
                .map(|other| gate(format!("other-{other}"), u32::MAX))
                .collect(),
        }
    }

    fn demand(&self, ask: &Ask) -> Demand {
        let mut demand = Demand::new();
        demand.add(&self.gate, ());
        if ask.tokens > 0 {
            demand.add(&self.bucket, ask.tokens);
        }
        for (other, wanted) in self.others.iter().zip(ask.others) {
            if wanted {
                demand.add(other, ());
            }
        }
        demand
    }
}

/// One release, one walk, until nobody waits. Answers the time it took and who went in which order.
fn drain(mix: Mix) -> (f64, Vec<u64>) {
    let now = Instant::now();
    let accounts = Accounts::new(now);
    let mut line = SteppedLine::new();
    let mut running = VecDeque::new();
    for _ in 0..PERMITS {
        running.push_back(line.arrive(accounts.demand(&Ask::default()), now).unwrap());
    }
    for ask in asks(mix) {
        line.arrive(accounts.demand(&ask), now).unwrap();
    }
    assert_eq!(line.len(), WAITERS);
    let mut order = Vec::with_capacity(WAITERS);
    let began = Instant::now();
    while let Some(done) = running.pop_front() {
        line.release(done, now).unwrap();
        let walked = line.walk(now).unwrap();
        running.extend(walked.granted.iter().copied());
        order.extend(walked.granted);
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    assert!(line.is_empty());
    (took, order)
}

/// The plain walk over demands that are a few numbers in a row: asks every waiter at every release.
fn drain_plainly(mix: Mix) -> (f64, Vec<u64>) {
    #[derive(Clone)]
    struct Plain {
        place: u64,
        amounts: [u64; 2 + OTHERS],
    }
    let mut waiting: Vec<Plain> = asks(mix)
        .iter()
        .zip(u64::from(PERMITS) + 1..)
        .map(|(ask, place)| {
            let mut amounts = [0; 2 + OTHERS];
            amounts[0] = 1;
            amounts[1] = u64::from(ask.tokens);
            for (amount, wanted) in amounts[2..].iter_mut().zip(ask.others) {
                *amount = u64::from(wanted);
            }
            Plain { place, amounts }
        })
        .collect();
    let mut free = [u64::from(u32::MAX); 2 + OTHERS];
    free[0] = 0;
    let mut running = VecDeque::from(vec![[1, 0, 0, 0, 0, 0]; PERMITS as usize]);
    let mut order = Vec::with_capacity(WAITERS);
    let began = Instant::now();
    while let Some(done) = running.pop_front() {
        for (account, amount) in done.iter().enumerate() {
            // Tokens do not come back.
            if account != 1 {
                free[account] += amount;
            }
        }
        let mut reserved = [0; 2 + OTHERS];
        let mut is_head = true;
        waiting.retain(|waiter| {
            let fits = waiter
                .amounts
                .iter()
                .zip(&free)
                .zip(&reserved)
                .all(|((amount, free), ahead)| *amount == 0 || amount + ahead <= *free);
            if fits {
                for (free, amount) in free.iter_mut().zip(&waiter.amounts) {
                    *free -= amount;
                }
                running.push_back(waiter.amounts);
                order.push(waiter.place);
                return false;
            }
            if is_head {
                reserved = waiter.amounts;
                is_head = false;
            }
            true
        });
    }
    (began.elapsed().as_secs_f64() * 1e3, order)
}

pub fn draining(effort: Effort, report: &mut dyn FnMut(Row)) {
    for (id, name, mix) in [
        ("B4.one_shape", "one kind of demand", Mix::OneShape),
        ("B4.shapes", "10 000 kinds of demand", Mix::ManyShapes),
        ("B4.mixed_sets", "16 sets of accounts", Mix::MixedSets),
    ] {
        let (plain, expected) = drain_plainly(mix);
        let took = (0..effort.pick(15, 5))
            .map(|_| {
                let (took, order) = drain(mix);
                assert_eq!(order, expected, "{id}: not the order of the plain walk");
                took
            })
            .collect();
        let value = median(took);
        report(Row {
            id: id.to_owned(),
            name: format!("10 000 waiters drain through a gate of 8, {name}"),
            value,
            unit: "ms",
            floor: Some(plain),
            // What counts is the time: at three milliseconds the line is out of the way.
            ratio: value,
            reach: Reach::AtMost(3.0),
        });
    }
}
