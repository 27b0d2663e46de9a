package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// converged waits until all members say that they hold the same and nothing is open, and tells how long that took.
func (l *Lab) converged() (time.Duration, error) {
	begin := time.Now()
	err := eventually(func() error {
		var first *Status
		members := l.present()
		for _, r := range members {
			s, err := r.status()
			if err != nil {
				return err
			}
			if first == nil {
				first = s
			}
			var open []string
			if s.vector() != first.vector() {
				open = append(open, "has "+s.vector()+" and "+first.Name+" has "+first.vector())
			} else if s.StateHash != first.StateHash {
				open = append(open, "hash "+s.StateHash+" and "+first.Name+" "+first.StateHash)
			}
			if s.UnsettledKeys != 0 {
				open = append(open, fmt.Sprintf("%d unsettled keys", s.UnsettledKeys))
			}
			if s.WritesRefused != nil {
				open = append(open, "refuses writes: "+*s.WritesRefused)
			}
			if len(s.Alarms) > 0 {
				open = append(open, "alarms: "+strings.Join(s.Alarms, ", "))
			}
			if len(s.Peers) != len(members)-1 {
				open = append(open, fmt.Sprintf("%d peers", len(s.Peers)))
			}
			for _, p := range s.Peers {
				if !p.Connected || p.State != "equal" {
					open = append(open, fmt.Sprintf("%s: connected %v, %s, %d entries behind %s", p.Name, p.Connected, p.State, p.EntriesBehind, p.Error))
				}
			}
			if len(open) > 0 {
				return fmt.Errorf("%s: %s", s.Name, strings.Join(open, "; "))
			}
		}
		return nil
	})
	return time.Since(begin).Round(time.Millisecond), err
}

// Content is all of a replica that replicas have in common: value, version and lease of each key.
type Content map[string]string

func content(kvs []*mvccpb.KeyValue) Content {
	all := Content{}
	for _, kv := range kvs {
		all[string(kv.Key)] = fmt.Sprintf("%q version %d lease %x", kv.Value, kv.Version, kv.Lease)
	}
	return all
}

func (c Content) difference(other Content) []string {
	var lines []string
	for key, value := range c {
		if other[key] != value {
			lines = append(lines, fmt.Sprintf("%s: %s, there %s", key, value, other[key]))
		}
	}
	for key, value := range other {
		if _, there := c[key]; !there {
			lines = append(lines, fmt.Sprintf("%s: nothing, there %s", key, value))
		}
	}
	sort.Strings(lines)
	return limit(lines, 8)
}

// reading is what one replica shows, and what etcdctl and the list of leases say of it.
type reading struct {
	all, ctl Content
	values   map[string]string
	leases   string
	failed   []string // why something of it could not be read
}

func (l *Lab) read(r *Replica) reading {
	var is reading
	etcd, err := l.connect(r)
	if err != nil {
		return reading{failed: []string{err.Error()}}
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := etcd.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return reading{failed: []string{err.Error()}}
	}
	is.all, is.values = content(answer.Kvs), map[string]string{}
	for _, kv := range answer.Kvs {
		is.values[string(kv.Key)] = string(kv.Value)
	}
	if l.etcdctl != "" {
		var told struct {
			Kvs []*mvccpb.KeyValue `json:"kvs"`
		}
		out, err := l.ctl(r, "get", "", "--prefix")
		if err == nil {
			err = json.Unmarshal(out, &told)
		}
		if err != nil {
			is.failed = append(is.failed, err.Error())
		}
		is.ctl = content(told.Kvs)
	}
	list, err := etcd.Leases(ctx)
	if err != nil {
		is.failed = append(is.failed, err.Error())
		return is
	}
	var ids []string
	for _, lease := range list.Leases {
		ids = append(ids, fmt.Sprintf("%x", lease.ID))
	}
	sort.Strings(ids)
	is.leases = strings.Join(ids, " ")
	return is
}

// compare reads everything everywhere, with the Go client and with etcdctl.
func (l *Lab) compare(ops []Op) {
	members := l.present()
	readings := make([]reading, len(members))
	// Leases of clients that were killed run out when they will: what was read while one did is read again.
	for range 10 {
		for place, r := range members {
			readings[place] = l.read(r)
		}
		again := l.read(members[0])
		if len(readings[0].all.difference(again.all)) == 0 && readings[0].leases == again.leases {
			break
		}
		l.wait(time.Second)
	}
	first := readings[0]
	for place, r := range members {
		is := readings[place]
		l.report.check(len(is.failed) == 0, r.name+": can be read", "", is.failed...)
		difference := first.all.difference(is.all)
		l.report.check(len(difference) == 0 && len(is.all) > 0, r.name+": holds every key as all others, by the Go client", fmt.Sprintf("%d keys", len(is.all)), difference...)
		if l.etcdctl != "" {
			difference = first.all.difference(is.ctl)
			l.report.check(len(difference) == 0, r.name+": the same by etcdctl", fmt.Sprintf("%d keys", len(is.ctl)), difference...)
		}
		l.report.check(is.leases == first.leases, r.name+": has the same leases", fmt.Sprintf("%d", len(strings.Fields(is.leases))), is.leases, first.leases)
	}
	l.kept(ops, first.all)
}

// lasting says whether the key of an operation was never on a disk that was lost since.
func (l *Lab) lasting(op Op) bool {
	r := l.replicas[op.Replica]
	return !l.wiped || strings.HasPrefix(op.Key, fmt.Sprintf("private/%d/%d/", r.place, r.epoch))
}

// kept checks that the last acknowledged write to each key that only one replica writes is there.
func (l *Lab) kept(ops []Op, held Content) {
	last, unsure := map[string]Op{}, map[string][]Op{}
	for _, op := range ops {
		if !strings.HasPrefix(op.Key, "private/") || l.wiped && strings.HasSuffix(op.Key, "/etcdctl") {
			continue
		}
		if op.Outcome == Unknown && (op.Kind == Put || op.Kind == Delete || op.Kind == Swap) {
			unsure[op.Key] = append(unsure[op.Key], op)
		} else if op.Outcome == OK && op.writes() && op.Header > last[op.Key].Header {
			last[op.Key] = op
		}
	}
	var lost []string
	for key, op := range last {
		if !l.lasting(op) {
			continue
		}
		here, there := held[key]
		matches := func(o Op) bool {
			return o.Kind == Delete && !there || o.Kind != Delete && there && strings.HasPrefix(here, fmt.Sprintf("%q ", o.Value))
		}
		ok := matches(op)
		for _, o := range unsure[key] {
			ok = ok || matches(o) // One that may have come last.
		}
		if !ok {
			lost = append(lost, op.String(), "        all hold: "+here)
		}
	}
	l.report.check(len(lost) == 0, "every acknowledged write that was the last of its key is everywhere", fmt.Sprintf("%d keys", len(last)), limit(lost, 12)...)
}
