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
    // A demand goes with its job's thread, long after its grant.
    let demands: Vec<Arc<Demand>> = asks(mix)
        .iter()
        .map(|ask| Arc::new(accounts.demand(ask)))
        .collect();
    for demand in &demands {
        line.arrive(Arc::clone(demand), now).unwrap();
    }
    assert_eq!(line.len(), WAITERS);
    let mut order = Vec::with_capacity(WAITERS);
    let began = Instant::now();
    while let Some(done) = running.pop_front() {
        line.release(done, now).unwrap();
        let walked = line.walk(now).unwrap();
        running.extend(walked.granted.iter().copied());
        order.extend(&walked.granted);
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    assert!(line.is_empty());
    (took, order)
}

/// The plain walk over demands that are a few numbers in a row: asks every waiter at every release.
fn drain_plainly(mix: Mix) -> (f64, Vec<u64>) {
    const GATE: usize = 0;
    const BUCKET: usize = 1;
    /// Only what a demand names is asked for.
    #[derive(Clone, Copy)]
    struct Plain {
        place: u32,
        count: u32,
        entries: [(u32, u32); 2 + OTHERS],
    }
    impl Plain {
        fn entries(&self) -> &[(u32, u32)] {
            &self.entries[..self.count as usize]
        }
    }
    let asks = asks(mix);
    let mut waiting: Vec<Plain> = (PERMITS + 1..)
        .zip(&asks)
        .map(|(place, ask)| {
            let mut plain = Plain {
                place,
                count: 0,
                entries: [(0, 0); 2 + OTHERS],
            };
            let others = (2..)
                .zip(ask.others)
                .map(|(at, wanted)| (at, u32::from(wanted)));
            let named = [(GATE as u32, 1), (BUCKET as u32, ask.tokens)];
            for entry in named
                .into_iter()
                .chain(others)
                .filter(|(_, amount)| *amount > 0)
            {
                plain.entries[plain.count as usize] = entry;
                plain.count += 1;
            }
            plain
        })
        .collect();
    let mut free = [u64::from(u32::MAX); 2 + OTHERS];
    free[GATE] = 0;
    let mut running = VecDeque::from(vec![
        Plain {
            place: 0,
            count: 1,
            entries: [(0, 1); 2 + OTHERS]
        };
        8
    ]);
    assert_eq!(running.len(), PERMITS as usize);
    let mut order = Vec::with_capacity(WAITERS);
    let began = Instant::now();
    while let Some(done) = running.pop_front() {
        for (account, amount) in done.entries() {
            // Tokens do not come back.
            if *account as usize != BUCKET {
                free[*account as usize] += u64::from(*amount);
            }
        }
        let mut reserved = [0_u64; 2 + OTHERS];
        let mut is_head = true;
        waiting.retain(|waiter| {
            let fits = waiter.entries().iter().all(|(account, amount)| {
                u64::from(*amount) + reserved[*account as usize] <= free[*account as usize]
            });
            if fits {
                for (account, amount) in waiter.entries() {
                    free[*account as usize] -= u64::from(*amount);
                }
                running.push_back(*waiter);
                order.push(u64::from(waiter.place));
                return false;
            }
            if is_head {
                for (account, amount) in waiter.entries() {
                    reserved[*account as usize] = u64::from(*amount);
                }
                is_head = false;
            }
            true
        });
    }
    (began.elapsed().as_secs_f64() * 1e3, order)
}

pub(crate) fn draining(effort: Effort, report: &mut dyn FnMut(Row)) {
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
