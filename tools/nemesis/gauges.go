package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Gauges looks at the memory of replicas all the time, and at more of them when it is asked to.
type Gauges struct {
	lab      *Lab
	replicas []*Replica
	stop     chan struct{}
	ended    sync.Once
	wait     sync.WaitGroup
	mu       sync.Mutex
	most     map[string]int64 // bytes resident
	since    map[string]int64 // the same since it was told last
}

func (l *Lab) gauges(replicas []*Replica) *Gauges {
	g := &Gauges{lab: l, replicas: replicas, stop: make(chan struct{}), most: map[string]int64{}, since: map[string]int64{}}
	g.wait.Go(func() {
		for {
			g.look()
			select {
			case <-g.stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return g
}

func (g *Gauges) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.replicas {
		rss := r.rss()
		g.most[r.name], g.since[r.name] = max(g.most[r.name], rss), max(g.since[r.name], rss)
	}
}

// finish ends it. The most memory that it saw may be read then.
func (g *Gauges) finish() {
	g.ended.Do(func() {
		close(g.stop)
		g.wait.Wait()
		g.look()
	})
}

// mostSince is the most memory of a replica since it was asked last, bytes.
func (g *Gauges) mostSince(r *Replica) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.since[r.name]
	g.since[r.name] = 0
	return most
}

// tell prints what each replica takes now, and what it took at most since it was told last.
func (g *Gauges) tell(when string) {
	g.lab.report.note("%s:", when)
	for _, r := range g.replicas {
		behind, unsettled := "", "?"
		if s, err := r.status(); err == nil {
			unsettled = strconv.Itoa(s.UnsettledKeys)
			for _, p := range s.Peers {
				behind += fmt.Sprintf(" %s %d", p.Name, p.EntriesBehind)
			}
			if len(s.Alarms) > 0 {
				behind += fmt.Sprint("; alarms ", s.Alarms)
			}
		}
		g.lab.report.note("  %s: %d MB resident (at most %d), %d MB on disk, %d MB of its quota used; %s unsettled keys; entries behind:%s",
			r.name, r.rss()>>20, g.mostSince(r)>>20, r.onDisk()>>20, r.metric("eddy_quota_used_bytes")>>20, unsettled, behind)
	}
}

// onDisk is the size of the data dir, bytes.
func (r *Replica) onDisk() int64 {
	total := int64(0)
	filepath.WalkDir(r.dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // A file that went meanwhile takes nothing.
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total
}

// cpu is the time that the process has computed.
func (r *Replica) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	// The name of the program, in parentheses, may have spaces.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // The kernel counts in hundredths of a second.
}

// metric is the value of a metric without labels; zero when it cannot be had.
func (r *Replica) metric(name string) int64 {
	response, err := httpClient.Get(r.ClientURL + "/metrics")
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	for _, line := range strings.Split(string(text), "\n") {
		if value, is := strings.CutPrefix(line, name+" "); is {
			number, _ := strconv.ParseFloat(value, 64)
			return int64(number)
		}
	}
	return 0
}

// noSpace are the alarms of a replica that say that it, or another, has no room left.
func noSpace(r *Replica) ([]string, error) {
	s, err := r.status()
	if err != nil {
		return nil, err
	}
	var alarms []string
	for _, alarm := range s.Alarms {
		if strings.Contains(alarm, "NOSPACE") {
			alarms = append(alarms, alarm)
		}
	}
	return alarms, nil
}
