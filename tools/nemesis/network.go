package main

// Place is where a replica listens and how it is started there.
type Place struct {
	ClientURL  string
	PeerURL    string   // as members know it
	ListenPeer string   // where it really listens
	Prefix     []string // of its command
}

// Network is what lies between the replicas. Clients reach all of them always.
type Network interface {
	// Add makes a place for one more replica.
	Add() (Place, error)
	// Cut keeps from arriving what `from` sends to `to`. With `reset` connections between them end, otherwise they hang.
	Cut(from, to int, reset bool) error
	// Heal lets everything through again.
	Heal() error
	// Sent is how many bytes a replica has sent to others.
	Sent(from int) int64
	Close()
}

// started tells a network which process a replica is.
type identifies interface{ Process(place, pid int) }

// counts tells a network that knows who sent each byte to whom.
type counts interface{ Carried(from, to int) int64 }
