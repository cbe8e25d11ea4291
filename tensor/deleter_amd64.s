#include "textflag.h"

// void deleter(managed): C's calling convention, the argument in DI. It uses registers that the caller has saved.
TEXT ·deleter(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ ·returned(SB), AX
again:
	MOVQ AX, 80(DI) // link
	LOCK
	CMPXCHGQ DI, ·returned(SB) // else AX is what is there now
	JNE  again
	TESTQ AX, AX
	JNE  done // whoever put the first one there has written
	MOVL $1, AX // write
	MOVLQSX ·returnedFD(SB), DI
	LEAQ ·returned(SB), SI // any byte
	MOVL $1, DX
	SYSCALL
done:
	RET

// func deleterAddress() unsafe.Pointer
TEXT ·deleterAddress(SB), NOSPLIT, $0-8
	LEAQ ·deleter(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func callDeleter(managed unsafe.Pointer)
TEXT ·callDeleter(SB), NOSPLIT, $8-8
	MOVQ managed+0(FP), DI
	CALL ·deleter(SB)
	RET
