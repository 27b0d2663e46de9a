package main

import (
	"fmt"
	"sync"
	"time"
)

// What is known of an operation after it was asked for.
type Outcome int

const (
	OK      Outcome = iota // it was answered
	Failed                 // it was certainly not done
	Unknown                // it may have been done, or may yet be
)

type Kind string

const (
	Put      Kind = "put"
	Get      Kind = "get"        // linearizable
	GetStale Kind = "get-serial" // serializable
	GetAt    Kind = "get-at"     // at revision Compare
	Delete   Kind = "delete"
	Swap     Kind = "cas" // puts if the mod revision is Compare, else reads
	// Of the scenario `single`.
	Multi      Kind = "multi" // one transaction: puts Key and Others[0], deletes Others[1]
	Grant      Kind = "grant"
	Revoke     Kind = "revoke"
	Compact    Kind = "compact" // at revision Compare
	Defragment Kind = "defragment"
)

// KV is what a replica says of a key.
type KV struct {
	Value                       string
	Create, Mod, Version, Lease int64
}

// Op is one operation of a client.
type Op struct {
	Replica int
	Client  string
	Kind    Kind
	Key     string
	Value   string
	Compare int64
	Lease   int64
	Others  []string
	// Nanoseconds since the start of the program.
	Call, Return int64
	Outcome      Outcome
	Err          string
	// Of the answer.
	Header    int64
	Found     *KV
	Succeeded bool
	Deleted   int64
}

func (o Op) writes() bool {
	switch o.Kind {
	case Put, Multi:
		return true
	case Delete:
		return o.Deleted > 0
	case Swap:
		return o.Succeeded
	}
	return false
}

// aside says that an operation has no place among revisions.
func (o Op) aside() bool {
	return o.Kind == "lease" || o.Kind == Compact || o.Kind == Defragment
}

func (o Op) String() string {
	text := fmt.Sprintf("%9.3f-%9.3fs r%d/%-9s %-10s %s", float64(o.Call)/1e9, float64(o.Return)/1e9, o.Replica, o.Client, o.Kind, o.Key)
	if o.Kind == Put || o.Kind == Swap || o.Kind == Multi {
		text += fmt.Sprintf(" = %.40q", o.Value)
	}
	if o.Kind == Swap || o.Kind == GetAt || o.Kind == Compact {
		text += fmt.Sprintf(" @%d", o.Compare)
	}
	if o.Lease != 0 {
		text += fmt.Sprintf(" lease %x", o.Lease)
	}
	switch o.Outcome {
	case OK:
		text += fmt.Sprintf(" -> revision %d", o.Header)
		switch {
		case o.Kind == Delete:
			text += fmt.Sprintf(", deleted %d", o.Deleted)
		case o.Kind == Swap && o.Succeeded:
			text += ", succeeded"
		case o.Kind == Put || o.Kind == Multi || o.Kind == Grant || o.Kind == Revoke || o.aside():
		case o.Found == nil:
			text += ", no such key"
		default:
			text += fmt.Sprintf(", %.40q create %d mod %d version %d", o.Found.Value, o.Found.Create, o.Found.Mod, o.Found.Version)
		}
	case Failed:
		text += " -> not done: " + o.Err
	case Unknown:
		text += " -> unknown: " + o.Err
	}
	return text
}

// History is what all clients of all replicas did.
type History struct {
	sync.Mutex
	ops []Op
}

func (h *History) add(op Op) {
	h.Lock()
	defer h.Unlock()
	h.ops = append(h.ops, op)
}

func (h *History) all() []Op {
	h.Lock()
	defer h.Unlock()
	return append([]Op(nil), h.ops...)
}

var start = time.Now()

func now() int64 { return int64(time.Since(start)) }
