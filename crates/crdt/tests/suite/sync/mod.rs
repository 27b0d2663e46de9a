//! The peer protocol between whole replicas, without a network: stories of two or three of them.

mod away;
mod faults;
mod moments;
mod month;
mod states;
mod stories;
mod strangers;
