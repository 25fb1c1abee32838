from tailrace.cli.main import main

main()
