package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// What a lease of the trouble `leases` lives by, and what may be added to it until the last replica has let it run out.
const (
	leaseTTL   = 4 * time.Second
	leaseGrace = 5 * time.Second // of a replica that does not own it, after the time to live
	// A replica counts in milliseconds, which were rounded.
	leaseRounding = 5 * time.Millisecond
	leaseSlack    = 3 * time.Second // for busy machines, and for the second in which it is looked at again
)

// What becomes of a lease while the links are cut.
const (
	fateKept    = "is kept alive throughout"
	fateBefore  = "its client stopped before the cut"
	fateDuring  = "its client stopped during the cut"
	fateRevoked = "was revoked during the cut"
	fateAfter   = "its client stopped after the heal"
)

// leases lets clients at each replica hold leases while links are cut for longer than one lives, and replicas are killed.
// What the clients noted decides, not what a replica says of a lease.
func leases(l *Lab, story *Story, _ time.Duration) error {
	tag := fmt.Sprintf("held/%d/", now())
	var lookouts []*Lookout
	var holders []*Holder
	members := l.present()
	for _, r := range members {
		lookout, err := l.lookout(r, tag)
		if err != nil {
			return err
		}
		defer lookout.close()
		lookouts = append(lookouts, lookout)
	}
	for place, r := range members {
		for n, fate := range []string{fateKept, fateKept, fateBefore, fateDuring, fateRevoked, fateAfter} {
			h := &Holder{lab: l, replica: r, guest: members[(place+1+n%(len(members)-1))%len(members)], fate: fate,
				key: fmt.Sprintf("%s%s/%d", tag, r.name, n), lookout: lookouts[place], stop: make(chan struct{})}
			if err := h.begin(); err != nil {
				return err
			}
			defer h.end()
			holders = append(holders, h)
		}
	}
	l.wait(leaseTTL)
	ends(holders, fateBefore)
	healed, err := leasesCut(l, story, holders)
	if err != nil {
		return err
	}
	l.report.check(true, "leases: the links are healed", fmt.Sprintf("%d leases at %d replicas", len(holders), len(members)))
	for _, fate := range []string{fateRevoked, fateBefore, fateDuring} {
		goneEverywhere(l, holders, fate, healed)
	}
	there := keptEverywhere(l, holders, healed)
	if err := ownerAway(l, story, members, holders); err != nil {
		return err
	}
	ends(holders, fateAfter)
	goneEverywhere(l, holders, fateAfter, healed)
	keptEverywhere(l, holders, now())
	judge(l, holders, lookouts, there)
	// What was revoked or ran out does not come back; and with its client the last lease goes.
	ends(holders, fateKept)
	for _, fate := range []string{fateRevoked, fateBefore, fateDuring, fateAfter, fateKept} {
		goneEverywhere(l, holders, fate+", at the end", healed)
	}
	return nil
}

// leasesCut cuts for longer than a lease lives anywhere, and tells when it healed.
func leasesCut(l *Lab, story *Story, holders []*Holder) (int64, error) {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	groups := 1 + l.random.Intn(len(order)-1)
	story.say("%s cut off from %s, %s", names(order[:groups]), names(order[groups:]), how(reset))
	begin := now()
	if err := l.severs(order[:groups], order[groups:], reset); err != nil {
		return 0, err
	}
	piece := (leaseTTL + leaseGrace + leaseSlack) / 4
	for step, victim := range []*Replica{nil, order[0], order[len(order)-1], nil} {
		if step == 0 {
			ends(holders, fateDuring)
			var revoking sync.WaitGroup
			for _, h := range holders {
				if h.fate == fateRevoked {
					revoking.Go(h.revoke)
				}
			}
			revoking.Wait()
		}
		if victim != nil {
			story.say("%s killed", victim.name)
			victim.kill()
			if err := l.restart(victim); err != nil {
				return 0, err
			}
		}
		l.wait(piece)
	}
	for _, r := range order[:groups] {
		l.noteCut(r.place, begin, now())
	}
	return now(), l.network.Heal()
}

// ownerAway kills a replica for longer than its leases live elsewhere. The others let those run out, and keep their own.
func ownerAway(l *Lab, story *Story, members []*Replica, holders []*Holder) error {
	r := members[l.random.Intn(len(members))]
	story.say("%s away", r.name)
	r.kill()
	died := now()
	for _, h := range holders {
		if h.replica != r || h.fate != fateKept {
			continue
		}
		for _, other := range members {
			if other != r {
				late := h.goneAt(other, died)
				l.report.check(late == nil, fmt.Sprintf("leases: %s lets %s run out when its owner is away", other.name, h.key), why(late))
			}
		}
	}
	if err := l.restart(r); err != nil {
		return err
	}
	l.wait(leaseTTL / 2)
	return nil
}

// ends lets the clients of one fate stop.
func ends(holders []*Holder, fate string) {
	for _, h := range holders {
		if h.fate == fate {
			h.end()
		}
	}
}

// goneEverywhere checks that leases of one fate are gone in time, counted from their last keep-alive or a later moment.
func goneEverywhere(l *Lab, holders []*Holder, fate string, since int64) {
	var late []string
	count, longest := 0, time.Duration(0)
	for _, h := range holders {
		if !strings.HasPrefix(fate, h.fate) {
			continue
		}
		for _, r := range l.present() {
			count++
			if err := h.goneAt(r, since); err != nil {
				late = append(late, err.Error())
			}
		}
		longest = max(longest, time.Duration(now()-max(since, h.lastAck())))
	}
	l.report.check(len(late) == 0, "leases: gone everywhere: "+fate, fmt.Sprintf("%d looks, the last %v after the last of keep-alive and heal",
		count, longest.Round(time.Millisecond)), limit(late, 8)...)
}

// keptEverywhere waits until all replicas show what hangs on leases that are kept alive, as their clients wrote it.
func keptEverywhere(l *Lab, holders []*Holder, since int64) int64 {
	var missing []string
	count := 0
	for _, h := range holders {
		if h.fate != fateKept && (h.fate != fateAfter || h.ended()) {
			continue
		}
		for _, r := range l.present() {
			count++
			if err := h.shownAt(r, since); err != nil {
				missing = append(missing, err.Error())
			}
		}
	}
	l.report.check(len(missing) == 0, "leases: what was kept alive is everywhere", fmt.Sprintf("%d looks, the last %v after", count,
		time.Duration(now()-since).Round(time.Millisecond)), limit(missing, 8)...)
	return now()
}

// judge compares what the clients noted with what the watches told.
func judge(l *Lab, holders []*Holder, lookouts []*Lookout, there int64) {
	var early, again []string
	acks, keys := 0, 0
	for _, h := range holders {
		acks, keys = acks+len(h.acknowledged()), keys+len(h.keys())
		early = append(early, h.broken()...)
		if h.fate != fateKept {
			continue
		}
		for _, lookout := range lookouts {
			for _, seen := range lookout.of(h.keys()) {
				// While its own replica was away nobody could know.
				if seen.deleted && seen.at > there && lookout.replica != h.replica && !h.paused(there, seen.at) {
					again = append(again, fmt.Sprintf("%s: %s deleted at %d, after all had it again", lookout.replica.name, seen.key, seen.rev))
				}
			}
		}
	}
	l.report.check(len(early) == 0, "leases: nothing goes at its own site before its time", fmt.Sprintf("%d keep-alives, %d keys", acks, keys), limit(early, 12)...)
	l.report.check(len(again) == 0, "leases: what came back stays", "", limit(again, 12)...)
}
