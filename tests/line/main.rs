//! The line under everything: cases of admission and its events, random histories, load, accounts
//! that misbehave, and what it costs in questions.

#[path = "../support/line.rs"]
mod line;

mod cases;
mod clocks;
mod cost;
mod faults;
mod foreign;
mod freed;
mod histories;
mod keys;
mod load;
mod told;
