package main

import (
	"fmt"
	"strings"
	"time"
)

// Trouble is something that the nemesis does. It leaves all processes running; links are healed after it.
type Trouble struct {
	name string
	do   func(l *Lab, story *Story, hold time.Duration) error
}

// Story is what a trouble did, told with its check.
type Story struct{ words []string }

func (s *Story) say(format string, args ...any) {
	s.words = append(s.words, fmt.Sprintf(format, args...))
}

// losesDisks are the troubles after which what only one replica had may be gone; they come only when they are asked for.
var losesDisks = map[string]bool{"wipe": true, "restore": true}

// takesLong are the troubles that would leave no time for others; they come only when they are asked for, too.
var takesLong = map[string]bool{"leases": true}

// troubles are all that can be chosen by name.
var troubles = []Trouble{
	{"alone", alone}, {"halves", halves}, {"ring", ring}, {"oneway", oneWay}, {"apart", apart},
	{"kill", killOne}, {"killall", killAll}, {"pause", pause}, {"killcut", killWhileCut}, {"killsync", killDuringSync},
	{"mixed", mixed}, {"member", member}, {"twice", twice}, {"mutual", mutual}, {"deposed", deposed}, {"hotkey", hotKey}, {"clock", clock},
	{"leases", leases}, {"wipe", wipeOne}, {"restore", restoreOne},
}

// chosen is a random order of n of the members.
func (l *Lab) chosen() []*Replica {
	members := l.present()
	l.random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return members
}

// severs cuts both directions between two groups.
func (l *Lab) severs(some, others []*Replica, reset bool) error {
	for _, a := range some {
		for _, b := range others {
			if a == b {
				continue
			}
			if err := l.network.Cut(a.place, b.place, reset); err != nil {
				return err
			}
			if err := l.network.Cut(b.place, a.place, reset); err != nil {
				return err
			}
		}
	}
	return nil
}

func how(reset bool) string {
	if reset {
		return "connections reset"
	}
	return "bytes held"
}

func alone(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s, %s", order[0].name, how(reset))
	return l.cutFor(hold, order[:1], func() error { return l.severs(order[:1], order[1:], reset) })
}

func halves(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	half := len(order) / 2
	story.say("%s and the others, %s", names(order[:half]), how(reset))
	return l.cutFor(hold, order, func() error { return l.severs(order[:half], order[half:], reset) })
}

// ring leaves to each replica two neighbours; three replicas are a line then.
func ring(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s, %s", names(order), how(reset))
	n := len(order)
	return l.cutFor(hold, nil, func() error {
		for i := range order {
			for j := i + 1; j < n; j++ {
				closing := i == 0 && j == n-1
				if j == i+1 || closing && n > 3 {
					continue
				}
				if err := l.severs(order[i:i+1], order[j:j+1], reset); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// oneWay loses what one replica sends to some others, not what they send to it.
func oneWay(l *Lab, story *Story, hold time.Duration) error {
	order := l.chosen()
	count := 1 + l.random.Intn(len(order)-1)
	story.say("from %s to %s", order[0].name, names(order[1:1+count]))
	return l.cutFor(hold, nil, func() error {
		for _, other := range order[1 : 1+count] {
			if err := l.network.Cut(order[0].place, other.place, false); err != nil {
				return err
			}
		}
		return nil
	})
}

func apart(l *Lab, story *Story, hold time.Duration) error {
	order, reset := l.chosen(), l.random.Intn(2) == 0
	story.say("%s from %s, %s", order[0].name, order[1].name, how(reset))
	return l.cutFor(hold, nil, func() error { return l.severs(order[:1], order[1:2], reset) })
}

// cutFor cuts, waits and heals. Those that see nobody of another group count as cut off.
func (l *Lab) cutFor(hold time.Duration, off []*Replica, cut func() error) error {
	if err := cut(); err != nil {
		return err
	}
	begin := now()
	l.wait(hold)
	for _, r := range off {
		l.noteCut(r.place, begin, now())
	}
	return l.network.Heal()
}

// wait sleeps; the load goes on meanwhile.
func (l *Lab) wait(long time.Duration) {
	select {
	case <-time.After(long):
	case <-interrupted:
	}
}

func (l *Lab) restart(r *Replica) error {
	if err := r.start(l.network); err != nil {
		return err
	}
	return r.ready()
}

func names(replicas []*Replica) string {
	var names []string
	for _, r := range replicas {
		names = append(names, r.name)
	}
	return strings.Join(names, " ")
}
