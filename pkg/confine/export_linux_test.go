package confine

// What the tests of the system call filter need of it.
var (
	RefusedCalls = refusedCalls
	SharedIPC    = sharedIPC
	Program      = program
)

// X32Bit is in the numbers of calls of x32.
const X32Bit = x32Bit
